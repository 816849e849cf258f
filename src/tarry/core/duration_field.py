"""Durations as pydantic fields. A separate module, because consumers use `durations` without pydantic."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from tarry.core.durations import PATTERN, format_duration, parse_duration


def _read_text(value: object) -> int:
    return parse_duration(value)


_SCHEMA = WithJsonSchema({"type": "string", "pattern": PATTERN, "examples": ["500ms", "2s", "1h30m"]})

Duration = Annotated[int, BeforeValidator(_read_text), PlainSerializer(format_duration, return_type=str), _SCHEMA]
"""A duration that is written as text in a file and stored as milliseconds."""
