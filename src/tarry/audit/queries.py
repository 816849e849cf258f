"""The named queries of the files in sql/."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def query(name: str) -> bytes:
    """The text of one query, as psycopg takes it."""
    return named_queries("tarry.audit")[name].encode()


@cache
def named_queries(package: str) -> dict[str, str]:
    """All queries in the sql folder of one package."""
    found: dict[str, str] = {}
    for file in (files(package) / "sql").iterdir():
        if file.name.endswith(".sql"):
            parts = _NAME.split(file.read_text(encoding="utf-8"))
            found |= {name: text.strip().rstrip(";") for name, text in zip(parts[1::2], parts[2::2], strict=True)}
    return found
