"""Once and only once, for consumers that share a database."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import psycopg
import pytest

from tarry.client import Attempt
from tarry.client.deduplicator_postgres import TABLE, forget, once, once_async
from tests.support.spaces import Database
from tests.support.waiting import wait_for

ID = "0a0a0a0a-0b0b-5c0c-8d0d-0e0e0e0e0e0e"
FIRST = Attempt("orders", "m-1", content="c")
RETRY = Attempt("orders", "m-1", retry_id=ID, round=1, retry_count=1)


@pytest.fixture
def dsn(database: Database) -> str:
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(TABLE)
        connection.execute(TABLE)
        connection.execute("create table work (what text)")
    return database.dsn


def work(connection: psycopg.Connection, attempt: Attempt, *, fail: bool = False) -> bool:
    with once(connection, attempt) as todo:
        if todo:
            connection.execute("insert into work values ('done')")
        if fail:
            raise ValueError("after the work")
    return todo


def done(connection: psycopg.Connection) -> int:
    row = connection.execute("select count(*) from work").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_second_delivery_of_an_attempt_does_nothing_and_a_retry_runs(dsn: str, autocommit: bool) -> None:  # noqa: FBT001
    with psycopg.connect(dsn, autocommit=autocommit) as connection:
        assert [work(connection, attempt) for attempt in (FIRST, FIRST, RETRY, RETRY)] == [True, False, True, False]
        assert done(connection) == 2


def test_what_failed_is_not_marked_and_its_work_is_taken_back(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        with pytest.raises(ValueError, match="after the work"):
            work(connection, FIRST, fail=True)
        assert done(connection) == 0
        assert work(connection, FIRST)


def test_a_consumer_at_work_on_the_same_is_waited_for(dsn: str) -> None:
    answers: list[bool] = []
    with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn, autocommit=True) as other:
        second = threading.Thread(target=lambda: answers.append(work(other, FIRST)))
        with once(one, FIRST) as todo:
            assert todo
            second.start()
            waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%tarry_h%'"
            with psycopg.connect(dsn, autocommit=True) as third:
                wait_for(lambda: third.execute(waiting).fetchone() == (1,), what="the second to wait")
            assert answers == []
        second.join(10)
        assert answers == [False]


def test_messages_without_an_id_are_never_held_back(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert [work(connection, Attempt("orders")) for _ in range(2)] == [True, True]


def test_old_marks_can_be_forgotten(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        work(connection, FIRST)
        assert forget(connection, timedelta(days=1)) == 0
        connection.execute("update tarry_handled set handled_at = handled_at - interval '2 days'")
        assert forget(connection, timedelta(days=1)) == 1
        assert work(connection, FIRST)


def test_it_works_with_an_async_connection(dsn: str) -> None:
    async def deliver() -> list[bool]:
        found = []
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            for attempt in (FIRST, FIRST, RETRY):
                async with once_async(connection, attempt) as todo:
                    found.append(todo)
        return found

    assert asyncio.run(deliver()) == [True, False, True]
