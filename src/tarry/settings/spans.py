"""Lengths of time in settings: as in the topology files, or `off`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator

from tarry.core.durations import parse_duration

OFF = "off"


def span_of(text: str) -> timedelta | None:
    """`15m` as a length of time, `off` as None."""
    return None if text == OFF else timedelta(milliseconds=parse_duration(text))


def _checked(text: str) -> str:
    try:
        span = span_of(text)
    except ValueError:
        raise ValueError(f"is no length of time: use s, m, h or d, as in 15m or 30d, or `{OFF}`") from None
    if span == timedelta(0):
        raise ValueError(f"must be longer than nothing; `{OFF}` switches it off")
    return text


Span = Annotated[str, AfterValidator(_checked)]
"""Checked, and kept as it was written: so it is shown."""
