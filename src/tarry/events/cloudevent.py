"""The format of events: CloudEvents 1.0, in AMQP's binary mode on the broker and as one JSON object elsewhere.

In binary mode the attributes of an event are headers named `cloudEvents:…`, and the body is its data as JSON. An event
never contains the body or the headers of a user's message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from tarry.amqp.field_tables import BadTableError, head, text_entry, walk
from tarry.amqp.properties import PERSISTENT, Properties
from tarry.amqp.publisher import Message
from tarry.core.names import event_key

SPECVERSION = "1.0"
CONTENT_TYPE = "application/json"
HEADER = "cloudEvents:"
"""The beginning of the names of the headers."""


class EventType(StrEnum):
    """The types of events. The value is the attribute `type`; `word` is its short form for filters."""

    SCHEDULED = "tarry.retry.scheduled"
    """A message failed for the first time and waits for its retry."""
    FAILED_AGAIN = "tarry.retry.failed_again"
    """A message that had returned failed again, and waits for its next retry."""
    RETURNED = "tarry.retry.returned"
    """A message is back in its queue."""
    SUCCEEDED = "tarry.retry.succeeded"
    """A consumer reported success, or no new failure arrived within the quiet time."""
    IN_REVIEW = "tarry.retry.in_review"
    """A message went to the review queue: its error is final, or its request was not usable."""
    EXHAUSTED = "tarry.retry.exhausted"
    """A message went to the review queue because it has used all its retries, or became too old."""
    REDRIVEN = "tarry.retry.redriven"
    """An operator sent a message back from review."""
    RETRIED_NOW = "tarry.retry.retried_now"
    """An operator sent a message back before it was due, or after its attempt was stuck."""
    DISCARDED = "tarry.retry.discarded"
    """An operator discarded a message, or wrote it off as lost."""
    CANCELLED = "tarry.retry.cancelled"
    """A wait was ended early: by an operator's cancel, or by a retry now, which begins the next round."""
    SKIPPED = "tarry.retry.skipped"
    """A rule of its policy ended a retry: its message is not wanted any more."""
    HELD = "tarry.retry.held"
    """A message came due while its destination, policy or job type was paused or throttled."""
    UNROUTABLE = "tarry.retry.unroutable"
    """A message came due and its destination did not exist."""
    OVERDUE = "tarry.retry.overdue"
    """A message should have returned by now and was not seen to."""
    MISSING = "tarry.retry.missing"
    """A message is overdue, and nothing on the broker can contain it: see `tarry audit verify`."""
    RECOVERED = "tarry.retry.recovered"
    """A message that was missing was published again from the audit."""
    STUCK = "tarry.retry.stuck"
    """An attempt started and never ended, and its message was recovered."""
    DUPLICATE = "tarry.retry.duplicate"
    """The same request, or the same return, was seen again; nothing was done about it."""
    PAUSED = "tarry.pause.paused"
    """Returns to a destination, of a policy or of a job type wait from now on."""
    RESUMED = "tarry.pause.resumed"
    """What a pause held returns again."""
    BREAKER_OPENED = "tarry.breaker.opened"
    """Too many returns to a destination failed again: its breaker has paused it."""
    BREAKER_CLOSED = "tarry.breaker.closed"
    """Returns to a destination succeed again: its breaker has ended the pause."""

    ANOMALY_BEGAN = "tarry.anomaly.began"
    """Retries of a queue, or of a policy, fail far more often than usual at this time."""
    ANOMALY_ENDED = "tarry.anomaly.ended"
    """The failure rate is near the usual one again, or too few retries return to tell."""

    @property
    def word(self) -> str:
        """`scheduled`, `failed_again`, `paused`, `breaker_opened`, `anomaly_began`."""
        _, thing, word = self.value.split(".")
        return f"{thing}_{word}" if thing in ("breaker", "anomaly") else word


@dataclass(frozen=True, slots=True)
class Event:
    """One event."""

    id: str
    """The same if the event is published again, and only then."""
    type: str
    source: str
    subject: str
    """The id of the retry; of a pause or a breaker, what is paused."""
    time: datetime
    sequence: str
    """Orders the events of one subject, as text."""
    state: str
    """The first word of the routing key: the state that a retry is in, or the short type of any other event."""
    data: Mapping[str, Any]

    @property
    def word(self) -> str:
        """The short type; of a type that this version does not know, its last word."""
        try:
            return EventType(self.type).word
        except ValueError:
            return self.type.rpartition(".")[2]

    @property
    def queue(self) -> str | None:
        found = self.data.get("queue")
        return found if isinstance(found, str) else None

    @property
    def key(self) -> str:
        """The routing key: `scheduled.invoices.orders.eu`."""
        return event_key(self.state, self.data.get("policy"), self.queue)

    def attributes(self) -> dict[str, str]:
        """Its CloudEvents attributes, without the content type."""
        return {
            "specversion": SPECVERSION,
            "id": self.id,
            "source": self.source,
            "type": self.type,
            "subject": self.subject,
            "time": _written(self.time),
            "sequence": self.sequence,
            "state": self.state,
        }

    def as_json(self) -> dict[str, Any]:
        """In structured mode: attributes and data in one object."""
        return {**self.attributes(), "datacontenttype": CONTENT_TYPE, "data": dict(self.data)}

    def message(self, exchange: str) -> Message:
        """In binary mode, to be published."""
        headers = b"".join(text_entry(_HEADS[name], text) for name, text in self.attributes().items())
        properties = Properties(
            content_type=CONTENT_TYPE.encode(),
            headers=headers,
            delivery_mode=PERSISTENT,
            message_id=self.id.encode(),
            timestamp=int(self.time.timestamp()),
            type=self.type.encode(),
        )
        body = json.dumps(self.data, ensure_ascii=False, separators=(",", ":")).encode()
        return Message(exchange, self.key, properties, body, token=self.id)

    @classmethod
    def read(cls, properties: Properties, body: bytes) -> Event | None:
        """From a message in binary mode; None if it is none of tarry's events."""
        try:
            found = {name.decode(): field.text() or "" for name, field in walk(properties.headers or b"")}
            data = json.loads(body)
            return cls.of_json({name: found[f"{HEADER}{name}"] for name in _HEADS} | {"data": data})
        except (BadTableError, ValueError, KeyError, RecursionError):
            return None

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Event | None:
        """From structured mode; None if it is none of tarry's events."""
        try:
            about = {name: str(found[name]) for name in _HEADS}
            time, data = datetime.fromisoformat(about.pop("time")), found["data"]
        except (ValueError, KeyError):
            return None
        if about.pop("specversion") != SPECVERSION or not isinstance(data, dict):
            return None
        return cls(**about, time=time, data=data)


_ATTRIBUTES = ("specversion", "id", "source", "type", "subject", "time", "sequence", "state")
_HEADS = {name: head(f"{HEADER}{name}") for name in _ATTRIBUTES}


def _written(time: datetime) -> str:
    """RFC 3339 in UTC: `2030-01-31T12:00:00.123456Z`."""
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def source_of(vhost: str, prefix: str) -> str:
    """The attribute `source` of an installation: `/tarry/%2F/retry`."""
    return f"/tarry/{quote(vhost, safe='')}/{quote(prefix.rstrip('.'), safe='')}"
