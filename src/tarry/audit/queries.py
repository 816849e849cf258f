"""The named queries of sql/queries.sql."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def query(name: str) -> bytes:
    """The text of one query, as psycopg takes it."""
    return _all()[name].encode()


@cache
def _all() -> dict[str, str]:
    parts = _NAME.split((files("tarry.audit") / "sql" / "queries.sql").read_text(encoding="utf-8"))
    return {name: text.strip().rstrip(";") for name, text in zip(parts[1::2], parts[2::2], strict=True)}
