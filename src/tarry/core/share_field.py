"""A share as a pydantic field: `"50%"` in a file, 0.5 in a policy."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema


def _parse_share(value: object) -> float:
    try:
        share = float(value[:-1]) / 100 if isinstance(value, str) and value.endswith("%") else 0.0
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError(f"`{value}`: use a share above 0% and up to 100%, as in 50%")
    return share


def format_share(share: float) -> str:
    return f"{share * 100:g}%"


Share = Annotated[
    float,
    BeforeValidator(_parse_share),
    PlainSerializer(format_share, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["50%"]}),
]
"""Above 0 and up to 1."""
