"""The named queries of an operator's actions; those of the audit can be used by their names too."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

from tarry.audit.queries import named_queries

PACKAGES = ("tarry.audit", "tarry.control", "tarry.control.review")


@cache
def query(name: str) -> bytes:
    """The text of one query, as psycopg takes it."""
    return _all()[name].encode()


@cache
def _all() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in PACKAGES:
        queries = named_queries(package) if find_spec(package) else {}
        twice = found.keys() & queries.keys()
        if twice:
            raise ValueError(f"{package} has queries that another package has too: {', '.join(sorted(twice))}")
        found |= queries
    return found
