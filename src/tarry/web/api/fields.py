"""Kinds of input that several routes share: narrow enough that what passes can be stored and printed."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, StringConstraints

NO_CONTROL = r"^[^\x00-\x1f\x7f]+$"
"""Postgres cannot store a NUL, and no terminal should be sent the others."""

Text = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NO_CONTROL)]
"""A name, a reason, a glob: one line."""

QueueName = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=NO_CONTROL)]


def _written(moment: object) -> object:
    """A number would pass for seconds since 1970, and hardly ever be meant so."""
    if isinstance(moment, str) and not re.match(r"\d{4}-\d\d-\d\d", moment):
        raise ValueError("should be a moment as in 2030-01-31T12:00:00Z")
    return moment


def _sane(moment: datetime) -> datetime:
    found = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if not 1970 <= found.year < 9999:  # noqa: PLR2004 - Python and Postgres both know these, with any offset
        raise ValueError("the year should be from 1970 to 9998")
    return found


Moment = Annotated[datetime, BeforeValidator(_written), AfterValidator(_sane)]
"""ISO 8601; UTC where it does not say otherwise."""
