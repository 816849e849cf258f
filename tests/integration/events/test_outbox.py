"""The outbox on a real broker and a real Postgres: what is published, when, and by whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import psycopg
import pytest

from tarry.amqp.publisher import Publisher
from tarry.events.outbox import Outbox, Position
from tarry.store.database import PostgresPool, PostgresSession, Row, SessionSettings, migrate, open_session
from tests.support.cli import run_cli
from tests.support.events import StreamReader
from tests.support.installation import Installation
from tests.support.router import Router
from tests.support.waiting import eventually, wait_for

STEP = "insert into transition (retry_id, round, state, actor) values (%s, 1, 'scheduled', 'test')"
IDS = [f"00000000-0000-4000-8000-{number:012d}" for number in range(4)]


def publishes(installation: Installation) -> bool:
    return installation.number("select count(*) from event_position") == 1


def begin(installation: Installation, start: Callable[..., Router]) -> Router:
    router = start().wait_ready()
    wait_for(lambda: publishes(installation), deadline=120, what="a position")
    return router


def test_each_step_of_a_message_is_an_event_in_order(
    installation: Installation, start: Callable[..., Router], reader: StreamReader
) -> None:
    begin(installation, start)
    queue = installation.declare("quick.orders")
    installation.request(queue, "m1")
    installation.wait_message(queue)
    installation.request(queue, "m1", error_class="final")

    wait_for(lambda: "in_review" in reader.words("m1"), deadline=120, what="the event of the review")
    assert reader.words("m1") == ["scheduled", "returned", "in_review"]
    scheduled, _, reviewed = (one for one in reader.events if one["data"].get("message_id") == "m1")
    assert (scheduled["specversion"], scheduled["source"].partition("/")[2][:5]) == ("1.0", "tarry")
    assert scheduled["data"]["policy"] == "quick"
    assert reviewed["data"]["error_class"] == "final"
    assert "payload" not in str(reader.events)


def test_a_step_that_is_committed_late_is_not_skipped(
    installation: Installation, start: Callable[..., Router], reader: StreamReader
) -> None:
    begin(installation, start)
    with psycopg.connect(installation.dsn) as late, psycopg.connect(installation.dsn, autocommit=True) as other:
        late.execute(STEP, [IDS[0]])
        other.execute(STEP, [IDS[1]])
        eventually(lambda: holder_is(installation, late.info.backend_pid))
        assert not reader.events, "an event is published although an older transaction is not over"
        late.commit()
    wait_for(lambda: len(reader.events) == 2, deadline=120, what="both events")
    assert [one["subject"] for one in reader.events] == [IDS[0], IDS[1]]


@pytest.mark.one_series
def test_a_step_that_an_outage_has_delayed_is_before_those_that_follow_it(
    installation: Installation, start: Callable[..., Router], reader: StreamReader
) -> None:
    """Its retry has returned before the outage. More than a batch was recorded before it."""
    begin(installation, start).stop()
    before, others = "now() - interval '50 s'", "gen_random_uuid() from generate_series(1, 499)"
    first, columns = f"'{IDS[0]}'::uuid", "transition (round, state, actor, detail, at, retry_id)"
    for state, at, what in (
        ("returned", before, first),
        ("scheduled", before, others),
        ("scheduled", "now()", others),
        ("scheduled", "now()", others),
        ("scheduled", "now()", first),
    ):
        step = f"""1, '{state}', 'test', '{{"due_ms": 1}}', {at}, {what}"""
        installation.rows(f"insert into {columns} select {step} returning id")
    start()
    wait_for(lambda: len(reader.events) == 3 * 499 + 2, deadline=120, what="all events")
    assert [one["state"] for one in reader.events if one["subject"] == IDS[0]] == ["scheduled", "returned"]


def holder_is(installation: Installation, pid: int) -> None:
    found = installation.rows("select transactionid::text, pid from pg_locks where locktype = 'transactionid'")
    assert pid in [row[1] for row in found]


def test_another_router_takes_over_and_nothing_is_missing(
    installation: Installation, start: Callable[..., Router], reader: StreamReader
) -> None:
    routers = [begin(installation, start), start().wait_ready()]
    leaders = wait_for(
        lambda: [one for one in routers if one.logged("publishing events")], deadline=120, what="a router to publish"
    )
    leaders[0].kill()
    with psycopg.connect(installation.dsn, autocommit=True) as connection:
        for retry in IDS:
            connection.execute(STEP, [retry])
    wait_for(lambda: len(reader.ids) == len(IDS), deadline=120, what="the events of the other router")
    assert [one["subject"] for one in reader.events] == IDS


def test_pauses_and_resumes_are_events_and_refused_ones_are_not(
    installation: Installation, start: Callable[..., Router], reader: StreamReader
) -> None:
    begin(installation, start)
    action = (
        "insert into action (id, actor, kind, target, outcome, finished_at, xid)"
        " values (gen_random_uuid(), 'ann', %s, %s, %s, now(), pg_current_xact_id())"
    )
    with psycopg.connect(installation.dsn, autocommit=True) as connection:
        connection.execute(action, ["pause", "orders", '{"error": "refused", "type": "BrokerError"}'])
        connection.execute(action, ["cancel", "m1", "{}"])
        connection.execute(action, ["pause", "policy gold", '{"scope": "policy", "destinations": ["policy gold"]}'])
        connection.execute(action, ["breaker_opened", "orders.eu", "{}"])
    wait_for(lambda: len(reader.events) == 2, deadline=120, what="the events")
    assert [(one["type"], one["subject"]) for one in reader.events] == [
        ("tarry.pause.paused", "policy gold"),
        ("tarry.breaker.opened", "orders.eu"),
    ]
    assert [one["data"].get("queue") for one in reader.events] == [None, "orders.eu"]


@pytest.mark.one_series
def test_an_action_that_an_earlier_version_recorded_is_an_event(
    installation: Installation, start: Callable[..., Router], reader: StreamReader
) -> None:
    """It does not write the transaction, which the column has no default for. The service that logs it does."""
    begin(installation, start)
    with psycopg.connect(installation.dsn, autocommit=True) as connection:
        connection.execute(
            "insert into action (id, actor, kind, target, outcome, finished_at)"
            " values (gen_random_uuid(), 'ann', 'pause', 'orders', '{}', now())"
        )
    wait_for(lambda: reader.events, deadline=120, what="the event")
    assert [(one["type"], one["subject"]) for one in reader.events] == [("tarry.pause.paused", "orders")]


class BusySession(PostgresSession):
    """Other transactions begin and end after each of its queries."""

    def __init__(self, connection: Any, other: psycopg.Connection[Any]) -> None:
        super().__init__(connection)
        self._other = other

    async def rows(self, name: str, /, **parameters: object) -> list[Row]:
        found = await super().rows(name, **parameters)
        for _ in range(5):
            self._other.execute("select pg_current_xact_id()")
        return found


@pytest.mark.one_series
def test_the_first_start_is_not_taken_for_a_restore_in_a_busy_database(installation: Installation) -> None:
    async def first_start(other: psycopg.Connection[Any]) -> Position:
        await migrate(installation.dsn)
        other.execute(STEP, [IDS[0]])
        store, names = PostgresPool(installation.dsn, "test"), installation.topology.broker_names
        outbox = Outbox(store, installation.address, names)
        async with open_session(installation.dsn, SessionSettings.EVENTS) as session:
            nobody = cast("Publisher", None)  # a first start publishes nothing
            return await outbox._begin(BusySession(session._connection, other), nobody)

    with psycopg.connect(installation.dsn, autocommit=True) as other:
        position = asyncio.run(first_start(other))
    assert (position.since_id, position.last_id) == (0, 0)


@pytest.mark.one_series
def test_after_a_restore_what_the_backup_had_not_published_is_published(
    installation: Installation, start: Callable[..., Router], reader: StreamReader
) -> None:
    """The ids of transactions in the backup are higher than those of the new cluster, or lower."""
    begin(installation, start).stop()
    with psycopg.connect(installation.dsn, autocommit=True) as connection:
        published = connection.execute("select nextval('transition_id')").fetchone()
        assert published is not None
        step = (
            "insert into transition (id, retry_id, round, state, actor, detail, xid)"
            """ values (%s, %s, 1, 'scheduled', 'x', '{"due_ms": 1}', %s)"""
        )
        connection.execute(step, [published[0], IDS[0], "9000000000"])
        connection.execute("select setval('transition_id', %s)", [published[0]])
        connection.execute(
            "update event_position set system_identifier = 1, transition_xid = '9000000000', action_xid = '9000000000',"
            " last_id = %s",
            published,
        )
        # In the backup, and not published: a return that was recorded before the retry that it ends.
        connection.execute(step.replace("'scheduled'", "'returned'"), [published[0] + 1, IDS[1], "9000000001"])
        connection.execute(step, [published[0] + 2, IDS[1], "9000000001"])
        connection.execute("select setval('transition_id', %s)", [published[0] + 2])
        connection.execute(STEP, [IDS[2]])  # written by the new cluster before a service began
        router = start().wait_ready()
        router.wait_logged("the database was restored to another cluster")
        wait_for(lambda: len(reader.events) == 3, deadline=120, what="what the backup had not published")
        connection.execute(STEP, [IDS[3]])
        wait_for(lambda: len(reader.events) == 4, deadline=120, what="what follows")
    assert {one["subject"] for one in reader.events[:3]} == {IDS[1], IDS[2]}
    assert [one["state"] for one in reader.events if one["subject"] == IDS[1]] == ["scheduled", "returned"]
    assert reader.events[3]["subject"] == IDS[3]


@pytest.mark.one_series
def test_the_transaction_that_holds_events_up_is_named(
    installation: Installation, start: Callable[..., Router], reader: StreamReader
) -> None:
    router = begin(installation, start)
    with psycopg.connect(installation.dsn, application_name="a long import") as late:
        late.execute("select pg_current_xact_id()")
        with psycopg.connect(installation.dsn, autocommit=True) as other:
            other.execute("insert into retry (id, queue, state, round) values (%s, 'orders', 'scheduled', 1)", [IDS[0]])
            other.execute(
                "insert into transition (retry_id, round, state, actor, at)"
                " values (%s, 1, 'scheduled', 'x', now() - interval '1 hour')",
                [IDS[0]],
            )
        shown = run_cli(["status"], installation.environment).output
        assert f"held up by backend {late.info.backend_pid} (a long import), whose transaction runs since" in shown
        assert f"select pg_terminate_backend({late.info.backend_pid})" in shown
        wait_for(lambda: router.metric("tarry_events_lag_seconds") > 3_000, deadline=120, what="the lag in the metrics")
        assert any("held up by backend" in note for note in router.ready()[1])
        late.rollback()
    wait_for(lambda: len(reader.events) == 1, deadline=120, what="the event")
    assert "events published 1" in run_cli(["status"], installation.environment).output
    wait_for(lambda: router.metric("tarry_events_lag_seconds") == 0, deadline=120, what="no lag")
    assert router.metric("tarry_events_published_total", type="scheduled") == 1

    router.kill()
    with psycopg.connect(installation.dsn, autocommit=True) as other, psycopg.connect(installation.dsn) as later:
        other.execute(
            "insert into transition (retry_id, round, state, actor, at)"
            " values (%s, 1, 'returned', 'x', now() - interval '1 hour')",
            [IDS[0]],
        )
        later.execute("select pg_current_xact_id()")
        later_pid = later.info.backend_pid
        shown = run_cli(["status"], installation.environment).output
    assert "events are 1h" in shown
    assert f"backend {later_pid}" not in shown, "a transaction that began after the step holds nothing up"
