"""Which messages in review are meant: one filter for listing, grouping and selecting. Pure."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tarry.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Filter:
    """All of what is said has to fit; what is not said fits."""

    queue: str | None = None
    """A name, or a glob of * and ?; empty for those that do not say where they failed."""
    reason: str | None = None
    """Part of the reason for the review."""
    fingerprint: str | None = None
    error_type: str | None = None
    """A name, or a glob of * and ?."""
    before: datetime | None = None
    """In review since before this moment."""
    after: datetime | None = None
    ids: tuple[str, ...] | None = None
    """Retry ids."""

    def parameters(self) -> dict[str, Any]:
        """For the queries."""
        return {
            "queue": None if self.queue is None else _like(self.queue),
            "reason": None if self.reason is None else f"%{_escaped(self.reason)}%",
            "fingerprint": self.fingerprint,
            "error_type": None if self.error_type is None else _like(self.error_type),
            "before": self.before,
            "after": self.after,
            "ids": None if self.ids is None else list(self.ids),
        }

    def told(self) -> dict[str, Any]:
        """What was said, for the books and for people."""
        said = {
            "queue": self.queue,
            "reason": self.reason,
            "fingerprint": self.fingerprint,
            "error_type": self.error_type,
            "before": self.before.isoformat() if self.before else None,
            "after": self.after.isoformat() if self.after else None,
            "ids": list(self.ids) if self.ids is not None else None,
        }
        return {name: value for name, value in said.items() if value is not None}

    @property
    def is_empty(self) -> bool:
        return not self.told()


def _escaped(text: str) -> str:
    return text.replace("\x00", "").replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _like(glob: str) -> str:
    return _escaped(glob).replace("*", "%").replace("?", "_")


def cursor_of(since: datetime, retry_id: str) -> str:
    """Where the next page begins; opaque to whoever carries it."""
    return base64.urlsafe_b64encode(f"{since.isoformat()} {retry_id}".encode()).decode().rstrip("=")


def read_cursor(text: str | None) -> tuple[datetime | None, str | None]:
    if text is None:
        return None, None
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
        since, _, retry_id = raw.partition(" ")
        return datetime.fromisoformat(since).astimezone(UTC), str(uuid.UUID(retry_id))
    except (ValueError, OverflowError):
        raise SettingsError(
            f"`{text[:80]}` is no cursor of this list: take the one that came with the page before."
        ) from None
