"""Migrations of a database with content: what an earlier version stored is found under its new name."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from tarry.store import database as store
from tarry.store.database import migrate
from tests.support.spaces import Database

BEFORE_NAMES = """
insert into hold (destination, kind, name, state, look) values ('orders', 'queue', 'orders', 'holding', '7 seconds');
insert into review_job (id, kind, actor, manner)
values ('00000000-0000-4000-8000-000000000001', 'redrive', 'ann', '{"fresh": false, "to": null}');
insert into review_item (job_id, retry_id, round, state)
values ('00000000-0000-4000-8000-000000000001', '00000000-0000-4000-8000-000000000002', 1, 'in_doubt');
"""


def _migrate_before(dsn: str, name: str) -> None:
    """As the version before this migration left it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("drop schema public cascade; create schema public")
        for one, text in store._migrations():
            if one == name:
                break
            connection.execute(text.encode())
            connection.execute(store.query("add_migration"), {"name": one})


def test_migration_of_names_keeps_pauses_and_review_jobs(database: Database) -> None:
    _migrate_before(database.dsn, "0008_names")
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(BEFORE_NAMES)
        assert "0008_names" in asyncio.run(migrate(database.dsn))
        paused = connection.execute("select state, observe::text from paused_destination").fetchone()
        job = connection.execute("select options from review_job").fetchone()
        item = connection.execute("select state from review_item").fetchone()
        asked = connection.execute(
            "select tarry_is_paused('orders', '', null, ''), tarry_is_paused('bills', '', null, '')"
        ).fetchone()
    assert (paused, item, asked) == (("holding", "00:00:07"), ("unconfirmed",), (True, False))
    assert job == ({"reset_attempts": False, "to": None},)
    assert asyncio.run(migrate(database.dsn)) == []


def test_migration_of_pauses_keeps_the_function_that_running_routers_call(database: Database) -> None:
    """Routers of the previous version go on until they are replaced."""
    _migrate_before(database.dsn, "0010_pauses")
    asked = "select tarry_is_paused('orders', '', ''::bytea), tarry_is_paused('bills', '', ''::bytea)"
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(
            "insert into paused_destination (destination, kind, name, state)"
            " values ('orders', 'queue', 'orders', 'holding')"
        )
        assert connection.execute(asked).fetchone() == (True, False)
        asyncio.run(migrate(database.dsn))
        assert connection.execute(asked).fetchone() == (True, False)


def test_migration_of_stuck_attempts_allows_its_notes_in_every_partition(database: Database) -> None:
    """A day that has a partition already has a constraint of its own."""
    _migrate_before(database.dsn, "0011_stuck")
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(store.query("add_partitions"))
        assert "0011_stuck" in asyncio.run(migrate(database.dsn))
        for at in ("now()", "'2001-01-01'"):
            for state in ("returned", "stuck", "started"):
                connection.execute(
                    f"insert into transition (retry_id, round, state, at, actor)"  # noqa: S608 - no input
                    f" values (gen_random_uuid(), 1, '{state}', {at}, 'x')".encode()
                )
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute(
                "insert into transition (retry_id, round, state, actor) values (gen_random_uuid(), 1, 'odd', 'x')"
            )


def test_migration_of_the_outbox_leaves_old_steps_as_they_are_and_numbers_new_ones(database: Database) -> None:
    """Their pages are not written again: the column has its default only afterwards."""
    _migrate_before(database.dsn, "0020_outbox")
    step = "insert into transition (retry_id, round, state, actor) values (gen_random_uuid(), 1, %s, 'x')"
    files = "select relfilenode from pg_class where relname like 'transition_%' and relkind = 'r' order by relname"
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(store.query("add_partitions"))
        connection.execute(step.encode(), ["returned"])
        before = connection.execute(files).fetchall()
        assert "0020_outbox" in asyncio.run(migrate(database.dsn))
        assert connection.execute(files).fetchall() == before
        with connection.transaction():
            connection.execute(step.encode(), ["missing"])
            own = connection.execute("select pg_current_xact_id()::text").fetchone()
        rows = connection.execute("select state, xid::text from transition order by id").fetchall()
    assert own is not None
    assert rows == [("returned", None), ("missing", own[0])]


def test_steps_keep_their_transaction_when_partitions_are_added_and_dropped(database: Database) -> None:
    at = "'2001-01-01 12:00+00'"
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(
            f"insert into transition (retry_id, round, state, actor, at)"  # noqa: S608 - no input
            f" select id, 1, 'returned', 'x', {at} from (select gen_random_uuid() as id) as one".encode()
        )
        connection.execute(
            "insert into retry (id, queue, state, round) select retry_id, 'q', 'held', 1 from transition"
        )
        before = connection.execute("select xid::text from transition").fetchone()
        connection.execute("select tarry_add_partition('2001-01-01')")
        added = connection.execute("select xid::text from transition_20010101").fetchone()
        connection.execute("select tarry_drop_partition('transition_20010101')")
        dropped = connection.execute("select xid::text from transition_default").fetchone()
    assert before is not None
    assert before == added == dropped
