"""Pages of lists, and the cursors between them."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar
from uuid import UUID

from tarry.core.json_types import DOCUMENTED
from tarry.errors import SettingsError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list."""

    __pydantic_config__ = DOCUMENTED

    items: list[T]
    next: str | None
    """The cursor of the next page; null on the last page."""


def write_cursor(order: str, moment: datetime | None, last: str) -> str:
    """The cursor after the item with this id, and with this time if the list is in order of time. Opaque to clients."""
    text = json.dumps([order, moment.isoformat() if moment else None, last])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str, order: str) -> tuple[datetime | None, str]:
    """The time and the id after which the page begins. Only lists in order of `id` have no time."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        own, moment, last = json.loads(raw)
        found = datetime.fromisoformat(moment) if moment is not None else None
        known = str(UUID(last))
    except (binascii.Error, ValueError, TypeError, AttributeError):
        raise _wrong_cursor() from None
    if own != order or (found is not None and found.tzinfo is None) or (found is None) != (order == "id"):
        raise _wrong_cursor()
    return found, known


def _wrong_cursor() -> SettingsError:
    return SettingsError("The cursor is not one of this list: pass `next` of the previous page, unchanged.")
