"""Postgres access: connections, the check for session-sharing poolers, named queries, advisory locks and migrations.

Connections have an application name, and keepalive settings that detect a dead peer in seconds instead of hours.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import IntEnum, StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

import psycopg
import structlog
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from tarry.errors import AuditError
from tarry.store.errors import PoolerError, Trouble, explained, unavailable

Connection = psycopg.AsyncConnection[TupleRow]

LONGEST_NAME = 63
"""Postgres truncates application names to this many bytes."""

_NOTICE: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""A dead network connection is detected within half a minute; the operating system's defaults take hours."""


def pool(
    dsn: str, name: str, *, patience: float, connections: int, configure: Callable[[Connection], Awaitable[None]]
) -> AsyncConnectionPool[Connection]:
    """A pool that reconnects by itself and runs each statement in its own transaction. Not open yet."""
    return AsyncConnectionPool[Connection](
        dsn,
        min_size=1,
        max_size=connections,
        timeout=patience,
        open=False,
        configure=configure,
        kwargs={"autocommit": True, "application_name": name[:LONGEST_NAME], **_NOTICE},
    )


PATIENCE = 5.0
"""Seconds for opening two connections and checking them."""

LOOKS = 40
"""Checks per connection. A pooler without other clients shows at the first check, or once it has used every
connection of its pool."""

PID = "select pg_backend_pid()"

_sound: set[str] = set()
"""Connection strings that passed the check: a process checks each once."""


async def refuse_shared_sessions(connection: Connection, dsn: str) -> None:
    """Raises a PoolerError if a pooler shares this connection's session with other clients."""
    if dsn not in _sound and _is_pooled(connection, await (await connection.execute(PID)).fetchone()):
        await _look(dsn)
    _sound.add(dsn)


def _is_pooled(connection: Connection, answer: tuple[int, ...] | None) -> bool:
    """Postgres sends the id of its backend process when a client connects. A pooler sends a number of its own, because
    it does not know yet which backend it will use.
    """
    return answer is not None and answer[0] != connection.info.backend_pid


async def _look(dsn: str) -> None:
    try:
        shared = await asyncio.wait_for(_are_shared(dsn), PATIENCE)
    except TimeoutError:
        raise unavailable(Trouble.POOLER, f"it did not open two connections within {PATIENCE:g} seconds.") from None
    if shared:
        raise PoolerError


async def _are_shared(dsn: str) -> bool:
    """Two unshared sessions keep one backend process each, and never the same one."""
    async with await _probe(dsn) as one, await _probe(dsn) as other:
        ones: set[int] = set()
        others: set[int] = set()
        for _ in range(LOOKS):
            ones.add(await _process(one))
            others.add(await _process(other))
            if len(ones) > 1 or len(others) > 1 or ones & others:
                return True
    return False


async def _probe(dsn: str) -> Connection:
    return await psycopg.AsyncConnection.connect(dsn, autocommit=True, connect_timeout=5, prepare_threshold=None)


async def _process(connection: Connection) -> int:
    answer = await (await connection.execute(PID)).fetchone()
    return int(answer[0]) if answer else 0


_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def query(name: str) -> bytes:
    """The text of one query, as bytes for psycopg."""
    return named_queries()[name].encode()


@cache
def named_queries() -> dict[str, str]:
    """Every query in the files of sql/, by name."""
    found: dict[str, str] = {}
    for file in (files("tarry.store") / "sql").iterdir():
        if file.name.endswith(".sql"):
            parts = _NAME.split(file.read_text(encoding="utf-8"))
            queries = {name: text.strip().rstrip(";") for name, text in zip(parts[1::2], parts[2::2], strict=True)}
            if twice := found.keys() & queries.keys():
                raise ValueError(
                    f"{file.name} has queries with names that another file uses: {', '.join(sorted(twice))}"
                )
            found |= queries
    return found


class AdvisoryLock(IntEnum):
    """The fixed advisory locks of an installation. Other versions of tarry use the same numbers: never change one."""

    MIGRATIONS = 7_312_001
    """Applies migrations. Held until the end of the transaction."""
    AUDIT_PASS = 7_312_002
    """Writes what an audit pass found."""
    RECOVERY = 7_312_003
    """Recovers missing retries, or writes them off."""
    CANCEL_RECONCILER = 7_312_004
    PAUSE_RECONCILER = 7_312_005
    REVIEW_SCAN = 7_312_010
    """Scans the review queue. Of two scans at the same time, each would take the messages that the other has received
    for missing."""
    STUCK_RECOVERY = 7_312_011
    """Recovers stuck attempts at intervals."""
    EVENTS = 7_312_020
    """Publishes events."""
    STATISTICS = 7_312_021
    """Counts statistics and looks for anomalies."""
    ADAPTIVE = 7_312_022
    """Judges which errors are given up."""


def job_lock(job_id: str) -> int:
    """The advisory lock of a review job: the first eight bytes of its id."""
    return int.from_bytes(uuid.UUID(job_id).bytes[:8], signed=True)


class SessionSettings(StrEnum):
    """The named query that configures a new connection."""

    OPERATOR = "configure_operator"
    """For short statements of operators: with a statement timeout."""
    REPORT = "configure_report"
    """For reads of the whole history: without a statement timeout, with more memory."""
    STATISTICS = "configure_statistics"
    """For counting statistics: only hash joins, and no lock is waited for."""
    EVENTS = "configure_events"
    """For the process that publishes events: another takes over soon after its machine has disappeared."""


Row = tuple[Any, ...]

SLICE_OF_ROWS = 2_000
"""Rows that are decoded at a time; other tasks run between two slices of a large result."""


class PostgresSession:
    """One connection; all queries on it run in the same Postgres session."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def process_id(self) -> int:
        """Of its process in Postgres."""
        return self._connection.info.backend_pid

    async def rows(self, name: str, /, **parameters: object) -> list[Row]:
        """The rows of one named query."""
        with explained_errors():
            cursor = await self._connection.execute(query(name), parameters)
            found: list[Row] = []
            while cursor.description and (some := await cursor.fetchmany(SLICE_OF_ROWS)):
                found += some
                if len(some) < SLICE_OF_ROWS:
                    break
                await asyncio.sleep(0)
            return found

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Run the queries of the block in one transaction."""
        with explained_errors():
            async with self._connection.transaction():
                yield

    async def one(self, name: str, /, **parameters: object) -> Row | None:
        """The first row of the answer, if there is any."""
        found = await self.rows(name, **parameters)
        return found[0] if found else None

    async def change(self, name: str, /, **parameters: object) -> int:
        """How many rows one named query changed."""
        with explained_errors():
            return (await self._connection.execute(query(name), parameters)).rowcount

    @asynccontextmanager
    async def lock(self, number: AdvisoryLock | int) -> AsyncIterator[bool]:
        """Holds this advisory lock for the duration of the block; yields False if another process holds it."""
        row = await self.one("try_lock", number=int(number))
        held = bool(row and row[0])
        try:
            yield held
        finally:
            if held and not self._connection.closed:
                await self.rows("unlock", number=int(number))


@asynccontextmanager
async def open_session(
    dsn: str, settings: SessionSettings = SessionSettings.REPORT, *, name: str = "tarry audit"
) -> AsyncIterator[PostgresSession]:
    """A connection outside any pool, until the block ends. Each query is its own transaction."""
    with explained_errors():
        connection = await _connect(dsn, name)
        async with connection:
            await refuse_shared_sessions(connection, dsn)
            session = PostgresSession(connection)
            await session.rows(settings)
            yield session


async def _connect(dsn: str, name: str, *, autocommit: bool = True) -> Connection:
    return await psycopg.AsyncConnection.connect(
        dsn, autocommit=autocommit, application_name=name[:LONGEST_NAME], **_NOTICE
    )


class PostgresPool:
    """Opens lazily and reconnects by itself; while Postgres is unavailable every query raises AuditUnavailableError."""

    def __init__(self, dsn: str, actor: str, *, patience: float = 3.0, connections: int = 8) -> None:
        self._dsn = dsn
        self._name = f"tarry operator {actor}"
        self._pool = pool(dsn, self._name, patience=patience, connections=connections, configure=_configure_operator)

    async def open(self) -> None:
        await self._pool.open(wait=False)

    async def close(self) -> None:
        await self._pool.close(timeout=1)

    async def rows(self, name: str, /, **parameters: object) -> list[Row]:
        """The rows of one named query, run in its own transaction."""
        async with self.page() as page:
            return await page.rows(name, **parameters)

    async def one(self, name: str, /, **parameters: object) -> Row | None:
        """The first row of the answer, if there is any."""
        async with self.page() as page:
            return await page.one(name, **parameters)

    async def change(self, name: str, /, **parameters: object) -> int:
        """How many rows one named query changed."""
        async with self.page() as page:
            return await page.change(name, **parameters)

    @asynccontextmanager
    async def page(self) -> AsyncIterator[PostgresSession]:
        """A connection for the duration of the block; each query on it is committed at once."""
        with explained_errors():
            async with self._pool.connection() as connection:
                await refuse_shared_sessions(connection, self._dsn)
                yield PostgresSession(connection)

    @asynccontextmanager
    async def transaction(self, *, dry_run: bool = False) -> AsyncIterator[PostgresSession]:
        """Run the queries of the block in one transaction; a dry run is rolled back."""
        with explained_errors():
            async with self._pool.connection() as connection:
                await refuse_shared_sessions(connection, self._dsn)
                async with connection.transaction(force_rollback=dry_run):
                    yield PostgresSession(connection)

    @asynccontextmanager
    async def lock(self, number: AdvisoryLock | int) -> AsyncIterator[PostgresSession | None]:
        """A session that holds this advisory lock for the duration of the block; None if another process holds it."""
        async with self.page() as page, page.lock(number) as held:
            yield page if held else None

    @asynccontextmanager
    async def dedicated(self, settings: SessionSettings) -> AsyncIterator[PostgresSession]:
        """A connection outside the pool with these settings. Unlike the pool it fails at once, with the reason, if
        Postgres refuses it.
        """
        async with open_session(self._dsn, settings, name=self._name) as session:
            yield session


Queries = PostgresPool | PostgresSession
"""Whatever runs named queries: a pool for a few short ones, a session for several on the same connection."""


@contextmanager
def explained_errors() -> Iterator[None]:
    """Converts errors of psycopg and its pool to AuditError."""
    try:
        yield
    except (psycopg.Error, PoolTimeout) as error:
        raise explained(error) from error


async def _configure_operator(connection: Connection) -> None:
    await connection.execute(query(SessionSettings.OPERATOR))


log = structlog.get_logger()

MIGRATE = "tarry migrate"
"""The application name of a migration's connections."""


async def migrate(dsn: str) -> list[str]:
    """Bring the schema up to date; returns the names of the migrations applied by this call."""
    with explained_errors():
        try:
            return await _migrate(dsn)
        except psycopg.errors.InsufficientPrivilege as error:
            raise AuditError(
                f"The database cannot be migrated: {error} Give the user in DATABASE_URL the right to create tables, "
                "or run `tarry audit migrate` once as a user who has it."
            ) from error


async def _migrate(dsn: str) -> list[str]:
    async with await _connect(dsn, MIGRATE) as connection:
        await refuse_shared_sessions(connection, dsn)
    async with await _connect(dsn, MIGRATE, autocommit=False) as connection:
        await connection.execute(query("lock_migrations"), {"number": int(AdvisoryLock.MIGRATIONS)})
        done = await _done(connection)
        applied = [await _apply(connection, name, text) for name, text in _migrations() if name not in done]
    async with await _connect(dsn, MIGRATE, autocommit=False) as connection:
        await _add_partitions(connection)
    return applied


def _migrations() -> list[tuple[str, str]]:
    folder = files("tarry.store") / "sql" / "migrations"
    found = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda entry: entry.name)
    return [(entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8")) for entry in found]


async def _done(connection: Connection) -> set[str]:
    """The applied migrations. Reads only, so that a user without create rights can find that nothing is to be done."""
    there = await (await connection.execute(query("has_migrations"))).fetchone()
    if not (there and there[0]):
        return set()
    return {row[0] for row in await (await connection.execute(query("migrations"))).fetchall()}


async def _apply(connection: Connection, name: str, text: str) -> str:
    await connection.execute(text.encode())
    await connection.execute(query("add_migration"), {"name": name})
    return name


async def _add_partitions(connection: Connection) -> None:
    """Without the right to add partitions, the history goes to the default one: complete, but not dropped by day."""
    try:
        await connection.execute(query("add_partitions"))
    except psycopg.errors.InsufficientPrivilege as error:
        log.warning(
            "no partitions for the history", error=str(error), do="run `tarry audit migrate` as its owner daily"
        )
