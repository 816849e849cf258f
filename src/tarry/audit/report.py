"""Reading the audit, for people: the balance, the drift, what waits and what is in review."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg

from tarry.audit.queries import query
from tarry.audit.records import Balance, Drift
from tarry.errors import AuditUnavailableError

GRACE = timedelta(seconds=30)
"""A retry so much past its due moment, and not seen to return, is overdue."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A retry in a tier."""

    queue: str
    tier: str
    due: datetime
    attempt: int
    most: int
    message: str


@dataclass(frozen=True, slots=True)
class InReview:
    """A message that a person decides about."""

    queue: str
    message: str
    reason: str
    at: datetime


class Report:
    """A reader of the audit on one connection."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def balance(self, grace: timedelta = GRACE) -> Balance:
        return Balance(*self._rows("balance", grace=grace)[0])

    def drift(self) -> Drift:
        return Drift(*self._rows("drift")[0])

    def waiting(self, limit: int) -> list[Waiting]:
        return [Waiting(*row) for row in self._rows("waiting", limit=limit)]

    def in_review(self, limit: int) -> list[InReview]:
        return [InReview(*row) for row in self._rows("reviewed", limit=limit)]

    def _rows(self, name: str, **parameters: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(query(name), parameters).fetchall()


@contextmanager
def report(dsn: str) -> Iterator[Report]:
    """A report that sees each question's own moment."""
    try:
        connection = psycopg.connect(dsn, autocommit=True, connect_timeout=5)
    except psycopg.OperationalError as error:
        raise AuditUnavailableError(f"Postgres does not answer: {error} Check DATABASE_URL.") from error
    with connection:
        yield Report(connection)
