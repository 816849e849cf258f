from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest

from tarry.core.states import State
from tarry.errors import AuditError, AuditUnavailableError
from tarry.store.claims import Store
from tarry.store.database import migrate
from tarry.store.errors import Trouble, kind_of
from tarry.store.rows import Record
from tests.support.audit_store import AuditStore, id_of
from tests.support.proxy import Proxy
from tests.support.spaces import Database

RECORD = Record(id_of("m"), 1, State.IN_REVIEW, "orders")


def trouble(dsn: str, record: Record = RECORD) -> AuditError:
    """What a store on this database says of a write."""

    async def write() -> AuditError:
        store = Store(dsn, "one")
        await store.open()
        try:
            await store.record([record])
        except AuditError as error:
            return error
        finally:
            await store.close()
        raise AssertionError("it took the write")

    return asyncio.run(write())


def said(error: AuditError) -> tuple[Trouble, bool, str]:
    """The kind, whether it is worth waiting for, and the first words."""
    return kind_of(error), isinstance(error, AuditUnavailableError), str(error).partition(":")[0]


def test_a_full_disk(store: AuditStore) -> None:
    store.sql.execute(
        "create function full_disk() returns trigger language plpgsql as $$ begin"
        " raise exception 'could not extend file: No space left on device' using errcode = '53100'; end $$;"
        " create trigger full_disk before insert on retry for each row execute function full_disk()"
    )
    error = trouble(store.dsn)
    assert said(error) == (Trouble.FULL, True, "Postgres has no disk space left")
    assert "tarry audit prune" in str(error)


def test_a_read_only_server(store: AuditStore, database: Database) -> None:
    store.sql.execute(f"alter database {database.name} set default_transaction_read_only = on")
    assert said(trouble(store.dsn)) == (Trouble.READ_ONLY, True, "Postgres is read-only")


def test_a_read_only_server_does_not_pass_for_one_that_is_back(store: AuditStore, database: Database) -> None:
    store.sql.execute(f"alter database {database.name} set default_transaction_read_only = on")

    async def ping() -> None:
        opened = Store(store.dsn, "one")
        await opened.open()
        try:
            await opened.ping()
        finally:
            await opened.close()

    with pytest.raises(AuditUnavailableError, match="read-only"):
        asyncio.run(ping())


@pytest.mark.parametrize("state", ["26000", "42P05", "08P01"])
def test_errors_of_a_pooler_say_what_it_needs(store: AuditStore, state: str) -> None:
    store.sql.execute(
        "create function pooler() returns trigger language plpgsql as $$ begin"
        f" raise exception 'as it comes through a pooler' using errcode = '{state}'; end $$;"
        " create trigger pooler before insert on retry for each row execute function pooler()"
    )
    error = trouble(store.dsn)
    assert said(error) == (Trouble.POOLER, True, "The connection pooler in front of Postgres fails")
    assert "pool_mode = session" in str(error)


def test_a_lost_schema(store: AuditStore) -> None:
    store.sql.execute("drop table retry cascade")
    error = trouble(store.dsn)
    assert said(error) == (Trouble.NO_SCHEMA, True, "The audit's tables are missing")
    assert "tarry audit migrate" in str(error)


def test_a_slow_server(store: AuditStore) -> None:
    with psycopg.connect(store.dsn) as somebody:
        somebody.execute("lock table retry")
        assert said(trouble(store.dsn)) == (Trouble.SLOW, True, "Postgres is too slow")


def test_a_server_that_does_not_answer(database: Database, proxy: Callable[[str], Proxy]) -> None:
    wire = proxy(database.dsn)
    wire.refuse()
    assert said(trouble(database.through(wire.port)))[:2] == (Trouble.UNREACHABLE, True)


def test_a_row_that_it_does_not_take_is_nobodys_outage(store: AuditStore) -> None:
    half = "half of \ud83d"
    halves = (RECORD._replace(reason=half), RECORD._replace(error_reason=half), RECORD._replace(owner=half))
    for wrong in (RECORD._replace(reason="a\x00b"), RECORD._replace(retry_count=2**40), *halves):
        assert said(trouble(store.dsn, wrong)) == (Trouble.REFUSED, False, "Postgres refused")


def test_a_user_without_create_rights_is_told_only_if_something_is_missing(
    store: AuditStore, database: Database
) -> None:
    reader = f"reader_{database.name}"
    dsn = store.dsn.replace("postgres@", f"{reader}@")
    store.sql.execute(f"create role {reader} login")
    try:
        with pytest.raises(AuditError, match=r"permission denied.* right to create tables"):
            asyncio.run(migrate(dsn))
        store.sql.execute(f"grant select on tarry_migration to {reader}")
        assert asyncio.run(migrate(dsn)) == []
    finally:
        store.sql.execute(f"drop owned by {reader}")
        store.sql.execute(f"drop role {reader}")
