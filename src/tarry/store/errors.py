"""Store errors, classified by cause: each kind has its own remedy, so health, logs and metrics name the kind.

Only a refusal is caused by the row that was written. Every other kind is caused by Postgres, ends by itself or through
an operator's action, and must never lose a row: the router writes to the spool, the tap waits.
"""

from __future__ import annotations

from enum import StrEnum

import psycopg
from psycopg_pool import PoolTimeout

from tarry.errors import AuditError, AuditUnavailableError


class Trouble(StrEnum):
    """Kinds of Postgres errors."""

    UNREACHABLE = "unreachable"
    """It does not answer, or refuses connections."""
    SLOW = "slow"
    """A statement took longer than allowed."""
    FULL = "full"
    """Its disk is full."""
    READ_ONLY = "read_only"
    """It accepts no writes: it is a standby, or configured as read-only."""
    NO_SCHEMA = "no_schema"
    """The audit's tables do not exist, or do not have the expected columns or functions."""
    POOLER = "pooler"
    """A connection pooler in between fails, or shares sessions between clients."""
    REFUSED = "refused"
    """It refused the row."""


CURES = {
    Trouble.UNREACHABLE: "Check that it runs and that DATABASE_URL is right.",
    Trouble.SLOW: "Look for locks, a long vacuum or a busy disk.",
    Trouble.FULL: "Free disk space, or run `tarry audit prune`.",
    Trouble.READ_ONLY: "Point DATABASE_URL at the primary.",
    Trouble.NO_SCHEMA: "Run `tarry audit migrate`, and check the database name in DATABASE_URL.",
    Trouble.POOLER: "Give it pool_mode = session and 20 connections, or point DATABASE_URL at Postgres itself.",
    Trouble.REFUSED: "",
}

_REFUSALS = ("21", "22", "23", "54")
"""SQLSTATE classes caused by the data: cardinality, data exception, integrity, limits such as a too large row."""

_BY_STATE = {
    "57014": Trouble.SLOW,
    "55P03": Trouble.SLOW,
    "40P01": Trouble.SLOW,
    "53100": Trouble.FULL,
    "25006": Trouble.READ_ONLY,
    "42P01": Trouble.NO_SCHEMA,
    "42703": Trouble.NO_SCHEMA,
    "42883": Trouble.NO_SCHEMA,
    "3F000": Trouble.NO_SCHEMA,
    "3D000": Trouble.NO_SCHEMA,
    "26000": Trouble.POOLER,
    "42P05": Trouble.POOLER,
    "08P01": Trouble.POOLER,
}
"""Only a pooler loses a prepared statement (26000) or finds one that is another client's (42P05); pgbouncer marks its
own messages with 08P01."""


class StoreUnavailableError(AuditUnavailableError):
    """Postgres cannot be written to now; `kind` says why."""

    def __init__(self, message: str, kind: Trouble) -> None:
        super().__init__(message)
        self.kind = kind


class PoolerError(AuditError):
    """A pooler shares sessions between clients. Waiting does not help."""

    kind = Trouble.POOLER

    def __init__(self) -> None:
        super().__init__(
            "DATABASE_URL leads to a connection pooler that shares sessions between clients (as pgbouncer does with "
            "pool_mode = transaction), and tarry keeps locks in its sessions: set pool_mode = session for its "
            "database, or point DATABASE_URL at Postgres itself."
        )


class StoreRefusedError(AuditError):
    """Postgres refused a row."""

    kind = Trouble.REFUSED


def kind_of(error: AuditError) -> Trouble:
    """The kind of any AuditError."""
    kind = getattr(error, "kind", None)
    if isinstance(kind, Trouble):
        return kind
    return Trouble.UNREACHABLE if isinstance(error, AuditUnavailableError) else Trouble.REFUSED


def explained(error: psycopg.Error | PoolTimeout) -> AuditError:
    """Convert to the error that callers of the store get, with the remedy in its message."""
    state = getattr(error, "sqlstate", None) or ""
    if state[:2] in _REFUSALS or (not state and isinstance(error, psycopg.DataError | psycopg.ProgrammingError)):
        return StoreRefusedError(f"Postgres refused: {_line(error)}")
    kind = _BY_STATE.get(state, Trouble.UNREACHABLE)
    return unavailable(kind, _line(error))


def unavailable(kind: Trouble, what: str) -> StoreUnavailableError:
    return StoreUnavailableError(f"{_HEADS[kind]}: {what} {CURES[kind]}".strip(), kind)


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."


_HEADS = {
    Trouble.UNREACHABLE: "Postgres does not answer",
    Trouble.SLOW: "Postgres is too slow",
    Trouble.FULL: "Postgres has no disk space left",
    Trouble.READ_ONLY: "Postgres is read-only",
    Trouble.NO_SCHEMA: "The audit's tables are missing",
    Trouble.POOLER: "The connection pooler in front of Postgres fails",
    Trouble.REFUSED: "Postgres refused",
}
