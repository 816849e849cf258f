"""Records on their way through the broker: written there while Postgres is away, and into Postgres by the tap."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any

from tarry.audit.records import Record
from tarry.broker.publisher import Message
from tarry.contract.properties import PERSISTENT, Properties
from tarry.core.names import Names
from tarry.core.states import State


def spool_message(record: Record, names: Names) -> Message:
    """A record on its way through the broker."""
    fields = record._replace(body=None, properties=None)._asdict()
    for name, value in (("body", record.body), ("properties", record.properties)):
        fields[name] = None if value is None else b64encode(value).decode()
    body = json.dumps(fields).encode()
    properties = Properties(content_type=b"application/json", delivery_mode=PERSISTENT)
    return Message(names.spool, "", properties, body, f"spool:{record.retry_id}:{record.round}")


def spooled_record(body: bytes) -> Record:
    """The record of a spool message; a ValueError, TypeError or KeyError if it is none."""
    try:
        fields: dict[str, Any] = json.loads(body)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if type(fields["round"]) is not int:
        raise TypeError("its round is no number")
    for name in ("body", "properties"):
        fields[name] = None if fields[name] is None else b64decode(fields[name])
    return Record(**(fields | {"state": State(fields["state"])}))
