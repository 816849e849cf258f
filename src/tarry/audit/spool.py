"""Records on their way through the broker: written there while Postgres is away, and into Postgres by the tap.

The body has the fields of the first version, which routers of that version read too; what came later is in headers.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any

from tarry.audit.records import Record
from tarry.broker.publisher import Message
from tarry.contract.fields import entry, pick
from tarry.contract.message import Delivery
from tarry.contract.properties import PERSISTENT, Properties
from tarry.core.names import Names
from tarry.core.states import State

IN_HEADERS = ("identity", "death", "guessed_round")


def spool_message(record: Record, names: Names) -> Message:
    """A record on its way through the broker."""
    fields = record._replace(body=None, properties=None)._asdict()
    later = b"".join(entry(name, value) for name in IN_HEADERS if (value := fields.pop(name)))
    for name, value in (("body", record.body), ("properties", record.properties)):
        fields[name] = None if value is None else b64encode(value).decode()
    body = json.dumps(fields).encode()
    properties = Properties(content_type=b"application/json", delivery_mode=PERSISTENT, headers=later)
    return Message(names.spool, "", properties, body, f"spool:{record.retry_id}:{record.round}")


def spooled_record(delivery: Delivery) -> Record:
    """The record of a spool message; a ValueError, TypeError or KeyError if it is none. Fields that only a later
    version knows are passed over.
    """
    try:
        fields: dict[str, Any] = json.loads(delivery.body)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if type(fields["round"]) is not int:
        raise TypeError("its round is no number")
    for name in ("body", "properties"):
        fields[name] = None if fields[name] is None else b64decode(fields[name])
    fields |= {name: value for name in IN_HEADERS if (value := _header(delivery, name)) is not None}
    fields["state"] = State(fields["state"])
    return Record(**{name: value for name, value in fields.items() if name in Record._fields})


def _header(delivery: Delivery, name: str) -> str | int | None:
    found = pick(delivery.properties.headers or b"", {name.encode()}).get(name.encode())
    if found is None:
        return None
    return found.integer() if name == "guessed_round" else found.text()
