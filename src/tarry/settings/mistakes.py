"""A wrong setting as one line: its name, where it was given, what is wrong and what would be right. Never a secret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tarry.settings.masking import is_secret, mask
from tarry.settings.model import Settings

_FIELDS = {str(info.alias): field for field, info in Settings.model_fields.items()}


def explain(error: ValidationError, origins: Mapping[str, str]) -> Iterator[str]:
    """`HTTP_PORT (environment): `abc` should be a whole number from 0 to 65535`."""
    for problem in error.errors():
        message = problem["msg"].removeprefix("Value error, ").replace("Input should", "should")
        if not problem["loc"]:
            yield message
            continue
        name = str(problem["loc"][0])
        field = _FIELDS[name]
        value = "" if is_secret(field) else f"`{mask(str(problem['input']))}` "
        yield f"{name} ({origins[field]}): {value}{_number(problem, field) or message}"


def _number(problem: ErrorDetails, field: str) -> str | None:
    """What a number may be, all of it: one limit at a time makes for two tries."""
    if not problem["type"].startswith(("int_", "greater_", "less_")):
        return None
    limits = {
        kind: getattr(part, kind)
        for part in Settings.model_fields[field].metadata
        for kind in ("ge", "le")
        if hasattr(part, kind)
    }
    if "le" in limits:
        return f"should be a whole number from {limits.get('ge', 0)} to {limits['le']}"
    return f"should be a whole number, {limits.get('ge', 0)} or more"
