"""Cursors: where a list goes on. Callers pass them back as they got them and read nothing into them."""

from __future__ import annotations

import base64
import binascii
import json
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Generic, TypeVar
from uuid import UUID

from fastapi import Query
from pydantic import BaseModel, Field

from tarry.web.api.problems import ProblemError

T = TypeVar("T")

Limit = Annotated[int, Query(ge=1, le=200, description="Most items in one answer.")]
Cursor = Annotated[
    str | None, Query(max_length=300, description="`next` of the answer before; without it, the beginning.")
]


class Page(BaseModel, Generic[T]):
    """A part of a list."""

    items: list[T]
    next: str | None = Field(description="Pass it as `cursor` for what follows; null at the end.")


def write_cursor(kind: str, moment: datetime | None, last: str) -> str:
    """Behind the item with this id, and this moment where the list goes by one."""
    said = json.dumps([kind, moment.isoformat() if moment else None, last])
    return base64.urlsafe_b64encode(said.encode()).decode().rstrip("=")


def read_cursor(cursor: str, kind: str) -> tuple[datetime | None, str]:
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        own, moment, last = json.loads(raw)
        found = datetime.fromisoformat(moment) if moment is not None else None
        known = str(UUID(last))
    except (binascii.Error, ValueError, TypeError, AttributeError):
        raise _wrong() from None
    if own != kind or (found is not None and found.tzinfo is None) or (found is None) != (kind == "id"):
        raise _wrong()
    return found, known


def _wrong() -> ProblemError:
    said = "query.cursor: pass `next` of an earlier answer to the same question, as it was."
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, said)
