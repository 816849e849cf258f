"""What `tarry explain` is asked about, as the delivery that the router would see."""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tarry.cli.streams import read_stdin
from tarry.contract import headers as h
from tarry.contract.encoding import table
from tarry.contract.fields import BadTableError, cut
from tarry.contract.json_text import json_problem
from tarry.contract.message import Delivery
from tarry.contract.properties import Properties
from tarry.core.names import Names
from tarry.errors import SettingsError

_SHORT = (
    *("content_type", "content_encoding", "correlation_id", "reply_to", "expiration"),
    *("message_id", "type", "user_id", "app_id", "cluster_id"),
)
_INTEGERS = ("delivery_mode", "priority", "timestamp")


def from_flags(names: Names, said: Mapping[str, str | int | None]) -> Delivery:
    """A request in headers, as a service would publish it."""
    given = {name: value for name, value in said.items() if value is not None}
    return Delivery(b"", Properties(headers=table(given)), "", names.scheduled)


def from_json(file: str) -> list[Delivery]:
    """One message or a list of them, as the management UI or `rabbitmqadmin get` shows them; `-` is stdin."""
    try:
        text = read_stdin() if file == "-" else Path(file).read_text(encoding="utf-8")
        found = json.loads(text)
        return [_delivery(one) for one in (found if isinstance(found, list) else [found])]
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        where = "stdin" if file == "-" else file
        raise SettingsError(
            f"{where} holds no message: {_problem(error)}. Paste one as the management UI shows it: "
            '{"properties": {"headers": {…}}, "payload": "…", "exchange": "", "routing_key": "orders"}.'
        ) from error


def _problem(error: Exception) -> str:
    if isinstance(error, OSError):
        return str(error.strerror)
    odd = isinstance(error, TypeError | AttributeError | OverflowError | UnicodeEncodeError | binascii.Error)
    return "a value in it is not of the kind that belongs there" if odd else json_problem(error)


def _delivery(found: Mapping[str, Any]) -> Delivery:
    given = dict(found.get("properties") or {})
    fields: dict[str, Any] = {"headers": table(found.get("headers") or given.get("headers") or {})}
    fields |= {name: str(given[name]).encode() for name in _SHORT if name in given}
    fields |= {name: _whole_number(name, given[name]) for name in _INTEGERS if name in given}
    payload = found.get("payload", "")
    body = payload if isinstance(payload, str) else json.dumps(payload)
    return Delivery(
        b64decode(body, validate=True) if found.get("payload_encoding") == "base64" else body.encode(),
        Properties(**fields),
        str(found.get("exchange") or ""),
        str(found.get("routing_key") or ""),
        bool(found.get("redelivered")),
    )


def _whole_number(name: str, value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"`{name}` is not a whole number")
    return value


def as_rejected(delivery: Delivery, queue: str, names: Names) -> Delivery:
    """The same message as it would come to tarry if its consumer rejected it now, in `queue`."""
    exchange, key = _text(delivery.exchange), _text(delivery.routing_key)
    death = {"count": 1, "reason": "rejected", "queue": queue, "exchange": exchange, "routing-keys": [key]}
    try:
        kept = cut(delivery.properties.headers or b"", lambda name: name == h.DEATHS.encode())
    except BadTableError:
        return delivery
    properties = replace(delivery.properties, headers=kept + table({h.DEATHS: [death]}))
    return delivery._replace(properties=properties, exchange=names.intake)


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode(errors="replace")
