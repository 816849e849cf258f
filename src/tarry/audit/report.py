"""Reading the audit, for people: the balance, the drift, what waits and what is in review."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg

from tarry.audit.pooling import refuse_shared_sessions
from tarry.audit.queries import query
from tarry.audit.records import Balance, Drift
from tarry.audit.trouble import explained

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

    def balance(self, grace: timedelta = GRACE, *, since: datetime | None = None, queue: str | None = None) -> Balance:
        return Balance(*self.rows("balance", grace=grace, since=since, queue=queue)[0])

    def drift(self) -> Drift:
        return Drift(*self.rows("drift")[0])

    def waiting(self, limit: int) -> list[Waiting]:
        return [Waiting(*row) for row in self.rows("waiting", limit=limit)]

    def in_review(self, limit: int) -> list[InReview]:
        return [InReview(*row) for row in self.rows("reviewed", limit=limit)]

    def rows(self, name: str, /, **parameters: object) -> list[tuple[Any, ...]]:
        """The answer of one named query."""
        with _explained():
            found = self._connection.execute(query(name), parameters)
            return found.fetchall() if found.description else []

    def change(self, name: str, /, **parameters: object) -> int:
        """How many rows one named query changed."""
        with _explained():
            return self._connection.execute(query(name), parameters).rowcount


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise explained(error) from error


@contextmanager
def report(dsn: str) -> Iterator[Report]:
    """A report that sees each question's own moment."""
    with _explained():
        connection = psycopg.connect(dsn, autocommit=True, connect_timeout=5)
    with _explained(), connection:
        refuse_shared_sessions(connection, dsn)
        books = Report(connection)
        books.rows("configure_report")
        yield books
