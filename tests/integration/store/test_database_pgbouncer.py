"""pgbouncer before Postgres: with pool_mode = session all works, any other mode is refused in one sentence."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tarry.errors import AuditError, AuditUnavailableError
from tarry.store.database import PostgresPool, migrate
from tarry.store.errors import Trouble, kind_of
from tests.support.pooler import pooler
from tests.support.spaces import Database
from tests.support.store import in_session

Pooled = Callable[..., str]
LOCK = 7_312_999


@pytest.fixture
def pooled(database: Database, open_folder: Path) -> Iterator[Pooled]:
    """Call it with a mode and lines of configuration."""
    with contextlib.ExitStack() as stack:
        yield lambda *mode: stack.enter_context(pooler(database, open_folder, *mode))


def refusal(act: Callable[[str], object], dsn: str) -> str:
    with pytest.raises(AuditError) as refused:
        act(dsn)
    assert not isinstance(refused.value, AuditUnavailableError), "waiting does not help"
    assert kind_of(refused.value) is Trouble.POOLER
    return str(refused.value)


def assert_clear(said: str) -> None:
    assert "pool_mode = session" in said
    assert "DATABASE_URL" in said
    assert "\n" not in said


async def locked(dsn: str) -> bool:
    pool = PostgresPool(dsn, "alice")
    await pool.open()
    try:
        async with pool.lock(LOCK) as page:
            return page is not None
    finally:
        await pool.close()


def lock(dsn: str) -> bool:
    return asyncio.run(locked(dsn))


def look(dsn: str) -> int:
    return len(in_session(dsn, lambda session: session.rows("configure_report")))


def migrated(dsn: str) -> list[str]:
    return asyncio.run(migrate(dsn))


@pytest.mark.parametrize("more", ["", "server_round_robin = 1", "default_pool_size = 1"])
@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_migrate_refuses_a_pooler_without_sessions(pooled: Pooled, mode: str, more: str) -> None:
    assert_clear(refusal(migrated, pooled(mode, more)))


@pytest.mark.parametrize("act", [look, lock])
def test_commands_refuse_a_pooler_without_sessions(pooled: Pooled, act: Callable[[str], object]) -> None:
    assert_clear(refusal(act, pooled("transaction")))


@pytest.mark.parametrize("more", ["", "server_round_robin = 1"])
def test_migrate_refuses_a_pooler_that_others_keep_busy(pooled: Pooled, more: str) -> None:
    dsn, done = pooled("transaction", more), threading.Event()

    def work() -> None:
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as connection:
            while not done.is_set():
                connection.execute("select pg_sleep(0.001)")

    others = [threading.Thread(target=work) for _ in range(4)]
    for other in others:
        other.start()
    try:
        for _ in range(10):
            assert_clear(refusal(migrated, dsn))
    finally:
        done.set()
        for other in others:
            other.join()


@pytest.mark.parametrize("more", ["", "server_round_robin = 1"])
def test_a_pooler_with_sessions_is_accepted(pooled: Pooled, more: str) -> None:
    dsn = pooled("session", more)
    for _ in range(5):
        assert migrated(dsn) == []
        assert look(dsn) == 1
        assert lock(dsn)


def test_a_pooler_that_gives_no_second_connection_is_waited_for(pooled: Pooled) -> None:
    with pytest.raises(AuditUnavailableError, match="pool_mode = session") as waited:
        migrated(pooled("session", "default_pool_size = 1"))
    assert kind_of(waited.value) is Trouble.POOLER
