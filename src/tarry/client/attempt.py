"""Reads from a delivery which attempt it is, how many are allowed, and until when there will be more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from tarry.contract import headers as h
from tarry.contract.identity import retry_id

Headers = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One delivery of a message."""

    queue: str
    message_id: str | None = None
    retry_id: str | None = None
    """tarry's id of the message; None on its first delivery."""
    round: int = 0
    """Which pass through tarry brought it here; 0 on its first delivery."""
    retry_count: int = 0
    """Retries already spent; a rate-limited round spends none."""
    max_retries: int | None = None
    """The number of retries that it may spend in total; None on its first delivery."""
    due: datetime | None = None
    """When the retry was due."""
    first_failed: datetime | None = None
    deadline: datetime | None = None
    """No retry comes later than this; None if its policy has no `max_age`."""
    content: str | None = field(default=None, compare=False)
    """A digest of body and headers, if the body is known; needed because messages may share an id."""

    @property
    def number(self) -> int:
        """1 on the first delivery."""
        return self.retry_count + 1

    @property
    def is_last(self) -> bool:
        """Whether a failure of this attempt goes to review; a rate limit is the exception."""
        return self.max_retries is not None and self.retry_count >= self.max_retries

    @property
    def key(self) -> str | None:
        """Identifies this attempt: equal for all its deliveries, different for every other attempt.

        The first delivery of a message has no retry id and is identified by message id and content. None if those are
        missing.
        """
        if self.retry_id is not None:
            return f"{self.retry_id}:{self.round}"
        if self.message_id is None or self.content is None:
            return None
        return f"{retry_id(self.message_id, self.queue, self.content)}:{self.round}"

    @classmethod
    def read(
        cls, headers: Headers | None, queue: str, message_id: str | None = None, body: bytes | None = None
    ) -> Attempt:
        """Reads an attempt from the headers. Never raises: an invalid value counts as absent."""
        content = None if body is None else _digest(headers or {}, body)
        if not headers or h.ID not in headers:
            return cls(queue, message_id, content=content)
        same_queue = headers.get(h.QUEUE) == queue
        if not same_queue and h.VIA not in headers:
            return cls(queue, message_id, content=content)  # forwarded from another queue: a new message here
        return cls(
            queue=queue,
            message_id=message_id,
            retry_id=_text(headers.get(h.ID)) if same_queue else None,
            round=_count(headers.get(h.ROUND)) or 0,
            retry_count=_count(headers.get(h.COUNT)) or 0,
            max_retries=_count(headers.get(h.MOST)),
            due=_moment(headers.get(h.DUE)),
            first_failed=_moment(headers.get(h.SINCE)),
            deadline=_moment(headers.get(h.DEADLINE)),
            content=content,
        )


def _digest(headers: Headers, body: bytes) -> str:
    """Digest of what the user sent, without what tarry and the broker added."""
    users = sorted((name, repr(value)) for name, value in headers.items() if not name.startswith((h.OURS, "x-")))
    return blake2b(repr(users).encode() + b"\0" + body, digest_size=16).hexdigest()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _moment(value: object) -> datetime | None:
    ms = _count(value)
    try:
        return None if ms is None else datetime.fromtimestamp(ms / 1_000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
