"""Input types that several routes share; valid values can be stored and printed."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Annotated, Any

from fastapi import Query, Request
from pydantic import AfterValidator, BeforeValidator, StringConstraints, TypeAdapter

from tarry.core.durations import PATTERN, parse_duration
from tarry.errors import Code
from tarry.web.api import PREFIX
from tarry.web.api.problems import ProblemError

NO_CONTROL = r"^[^\x00-\x1f\x7f]+$"
"""Postgres cannot store NUL, and the others must not reach a terminal."""

Text = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NO_CONTROL)]
"""A name, a reason, a glob: one line."""

QueueName = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=NO_CONTROL)]

Owner = QueueName
"""Whom messages belong to."""

Glob = Annotated[str, StringConstraints(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""May be empty."""


def _written(moment: object) -> object:
    """Refuses numbers, which would be read as seconds since 1970."""
    if isinstance(moment, str) and not re.match(r"\d{4}-\d\d-\d\d", moment):
        raise ValueError("should be a time such as 2030-01-31T12:00:00Z")
    return moment


def _sane(moment: datetime) -> datetime:
    found = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if not 1970 <= found.year < 9999:  # noqa: PLR2004 - valid in Python and Postgres with any offset
        raise ValueError("the year should be from 1970 to 9998")
    return found


Moment = Annotated[datetime, BeforeValidator(_written), AfterValidator(_sane)]
"""ISO 8601; UTC without an offset."""


LONGEST_MS = 3650 * 86_400_000


def _not_too_long(text: str) -> str:
    if parse_duration(text) > LONGEST_MS:
        raise ValueError("should be at most ten years")
    return text


def _not_zero(text: str) -> str:
    if not parse_duration(text):
        raise ValueError("should be more than zero")
    return text


Duration = Annotated[str, StringConstraints(max_length=40, pattern=PATTERN), AfterValidator(_not_too_long)]
"""`0s`, `30m`, `1h30m`."""

Lasting = Annotated[Duration, AfterValidator(_not_zero)]
"""A duration that is not zero."""


def length_of(text: str) -> timedelta:
    return timedelta(milliseconds=parse_duration(text))


_duration, _moment = TypeAdapter[str](Duration), TypeAdapter[datetime](Moment)


def _since(text: str) -> str:
    """Checks it: a duration, or a time."""
    begin_of(text)
    return text


def begin_of(text: str) -> datetime:
    """`1h` is an hour ago."""
    if re.fullmatch(PATTERN, text, re.ASCII):
        return datetime.now(UTC) - length_of(_duration.validate_python(text))
    return _moment.validate_python(text)


Since = Annotated[str, StringConstraints(min_length=1, max_length=40), AfterValidator(_since)]
"""A time, or a duration such as `7d`: so long ago."""


async def known_parameters_only(request: Request) -> None:
    """Refuses unknown and repeated query parameters, on every route."""
    if not request.query_params:
        return
    known = _described(request)
    for name in request.query_params:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            meant = f"did you mean {close[0]}?" if close else f"known parameters: {', '.join(known) or 'none'}."
            raise _wrong(f"query: no such parameter; {meant}")
        if len(request.query_params.getlist(name)) > 1 and not _takes_several(known[name]):
            raise _wrong(f"query.{name}: should be given only once")


def _described(request: Request) -> dict[str, Any]:
    """The query parameters of this operation, each with its schema."""
    paths, path = request.app.openapi()["paths"], request.scope["route"].path_format
    operation = paths[path if path in paths else PREFIX + path][request.method.lower()]
    return {one["name"]: one["schema"] for one in operation.get("parameters", []) if one["in"] == "query"}


def _takes_several(schema: dict[str, Any]) -> bool:
    return "array" in {part.get("type") for part in (schema, *schema.get("anyOf", ()))}


def _wrong(detail: str) -> ProblemError:
    return ProblemError(Code.INVALID_REQUEST, detail)


Limit = Annotated[int, Query(ge=1, le=200, description="Maximum number of items.")]
Cursor = Annotated[
    str | None, Query(max_length=300, description="`next` of the previous page; without it, the first page.")
]
