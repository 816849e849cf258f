"""Settings and locks of sessions."""

from __future__ import annotations

import asyncio

import pytest

from tarry.store.database import (
    SLICE_OF_ROWS,
    AdvisoryLock,
    PostgresPool,
    PostgresSession,
    Row,
    SessionSettings,
    open_session,
)
from tests.support.spaces import Database


async def shown(session: PostgresSession, setting: str) -> str:
    row = await (await session._connection.execute(f"show {setting}")).fetchone()
    assert row is not None
    return str(row[0])


@pytest.mark.parametrize(
    ("settings", "timeout", "memory"),
    [(SessionSettings.REPORT, "0", "128MB"), (SessionSettings.OPERATOR, "10s", "4MB")],
)
def test_a_session_has_the_settings_of_its_kind(
    database: Database, settings: SessionSettings, timeout: str, memory: str
) -> None:
    async def read() -> tuple[str, str]:
        async with open_session(database.dsn, settings) as session:
            return await shown(session, "statement_timeout"), await shown(session, "work_mem")

    assert asyncio.run(read()) == (timeout, memory)


def test_a_dedicated_session_leaves_the_settings_of_the_pool_alone(database: Database) -> None:
    async def read() -> list[str]:
        pool = PostgresPool(database.dsn, "alice")
        await pool.open()
        try:
            async with pool.dedicated(SessionSettings.REPORT) as report, pool.page() as page:
                return [await shown(report, "statement_timeout"), await shown(page, "statement_timeout")]
        finally:
            await pool.close()

    assert asyncio.run(read()) == ["0", "10s"]


def test_a_lock_of_a_session_ends_with_its_block(database: Database) -> None:
    async def locked() -> list[bool]:
        found: list[bool] = []
        async with open_session(database.dsn) as one, open_session(database.dsn) as other:
            async with one.lock(AdvisoryLock.RECOVERY) as held, other.lock(AdvisoryLock.RECOVERY) as second:
                found += [held, second]
            async with other.lock(AdvisoryLock.RECOVERY) as again, one.lock(AdvisoryLock.AUDIT_PASS) as different:
                found += [again, different]
        return found

    assert asyncio.run(locked()) == [True, False, True, True]


def test_an_error_while_locked_is_not_hidden_by_a_lost_connection(database: Database) -> None:
    async def fail() -> None:
        async with open_session(database.dsn) as session, session.lock(AdvisoryLock.RECOVERY):
            await session._connection.close()
            raise KeyError("the first error")

    with pytest.raises(KeyError, match="the first error"):
        asyncio.run(fail())


@pytest.mark.parametrize("count", [0, 1, SLICE_OF_ROWS - 1, SLICE_OF_ROWS, SLICE_OF_ROWS + 1, 2 * SLICE_OF_ROWS])
def test_all_rows_of_a_result_are_read_however_many_slices_it_has(
    database: Database, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    async def read() -> list[Row]:
        async with open_session(database.dsn) as session:
            monkeypatch.setattr("tarry.store.database.query", lambda _: b"select generate_series(1, %(count)s)")
            return await session.rows("numbers", count=count)

    assert asyncio.run(read()) == [(number,) for number in range(1, count + 1)]


def test_the_numbers_of_locks_are_those_of_earlier_versions() -> None:
    assert {lock.name: lock.value for lock in AdvisoryLock} == {
        "MIGRATIONS": 7312001,
        "AUDIT_PASS": 7312002,
        "RECOVERY": 7312003,
        "CANCEL_RECONCILER": 7312004,
        "PAUSE_RECONCILER": 7312005,
        "REVIEW_SCAN": 7312010,
        "STUCK_RECOVERY": 7312011,
        "EVENTS": 7312020,
        "STATISTICS": 7312021,
        "ADAPTIVE": 7312022,
    }
