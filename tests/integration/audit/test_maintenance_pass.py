"""What is overdue, missing or stalled is found; success is presumed; each is written once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError

from tarry.amqp.declare import channel
from tarry.amqp.management import Management
from tarry.amqp.url import Address
from tarry.audit import maintenance
from tarry.audit.depths import read_depths
from tarry.audit.maintenance import AuditPass, AuditPassRules, Stall
from tarry.core.ladder import itinerary
from tarry.core.names import Names
from tarry.errors import AuditError
from tarry.store.database import AdvisoryLock
from tarry.topology.apply import apply
from tarry.topology.model import Topology
from tests.support.audit_store import AuditStore, id_of, request
from tests.support.spaces import Vhost
from tests.support.waiting import wait_for

POLICY = {"name": "default", "schedule": ["250ms"], "max_retries": 2}
TOPOLOGY = Topology.model_validate({"policy": [POLICY], "ladder": {"levels": 2}})
M = id_of("m")


@pytest.fixture
def keeper(store: AuditStore, vhost: Vhost) -> AuditPass:
    address = Address.parse(vhost.amqp_url, management_url=vhost.management_url)
    apply(TOPOLOGY, address)
    quiet = AuditPassRules(quiet=timedelta(minutes=15), keep=timedelta(days=30))
    return AuditPass(store.dsn, Names(), Management(address), "keeper", quiet)


def test_a_quiet_return_counts_as_success_until_a_later_failure(store: AuditStore, keeper: AuditPass) -> None:
    store.claim(request("m"))
    store.schedule(M, 1, due_in_ms=-10)
    store.see(M, 1)
    assert store.do(keeper()).presumed == ()
    store.age(M, 16 * 60)
    (presumed,) = store.do(keeper()).presumed
    assert presumed[:5] == (M, 1, "orders", "m", 1)
    assert presumed.presumed
    assert store.do(keeper()).presumed == ()
    assert store.state(M)[0] == "succeeded"
    actor = store.sql.execute("select actor from transition where state = 'succeeded'").fetchall()
    assert actor == [("presumed",)]
    assert store.claim(request("m", round_=1, count=1))[M].round == 2


def test_an_overdue_round_is_noted_once(store: AuditStore, keeper: AuditPass) -> None:
    store.claim(request("m"))
    store.schedule(M, 1, tier="retry.delay.250ms")
    store.age(M, 60 + 40)
    found = store.do(keeper())
    assert (found.noted, found.counts.overdue, found.missing, found.late) == (1, 1, 0, 0)
    assert 40 <= found.oldest_overdue_s < 400
    found = store.do(keeper())
    assert (found.noted, found.missing) == (0, 1), "missing in two consecutive audit passes"
    store.do(keeper())
    noted = store.sql.execute("select round from transition where state = 'missing'").fetchall()
    assert noted == [(1,)], "once"
    store.claim(request("m", round_=1, count=1))
    store.schedule(M, 2, tier="retry.delay.250ms")
    store.age(M, 60 + 40)
    assert store.do(keeper()).noted == 1, "another round"


def test_only_one_of_two_writes(store: AuditStore, keeper: AuditPass) -> None:
    store.claim(request("m"))
    store.schedule(M, 1, tier="retry.delay.250ms")
    store.age(M, 60 + 40)
    store.sql.execute("select pg_advisory_lock(%s)", [AdvisoryLock.AUDIT_PASS])
    found = store.do(keeper())
    assert (found.noted, found.counts.overdue) == (0, 1), "the reading is everybody's"
    store.sql.execute("select pg_advisory_unlock(%s)", [AdvisoryLock.AUDIT_PASS])
    assert store.do(keeper()).noted == 1


def fill(opened: BlockingChannel, queue: str) -> None:
    """Until it refuses: a quorum queue takes some more than its limit."""
    for _ in range(100):
        opened.basic_publish("", queue, b"x")


def test_a_stalled_relay_is_flagged_with_the_destination_behind_it(store: AuditStore, keeper: AuditPass) -> None:
    full = {"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish"}
    with channel(keeper.management.address, "test") as opened:
        opened.confirm_delivery()
        opened.queue_declare("full", durable=True, arguments=full)
        opened.queue_bind("full", "retry.deliver", "~to:full")
        with pytest.raises(NackError):
            fill(opened, "full")
        way = itinerary(TOPOLOGY.rules.ladder, 250, TOPOLOGY.rules.tiers).keys
        about = pika.BasicProperties(delivery_mode=2, headers={"BCC": [*way, "~to:full"]})
        for _ in range(6):
            opened.basic_publish("retry.delay", "key", b"x", about)
    store.sql.execute(
        "insert into retry (id, queue, state, round, returned_round, tier, returned_at)"
        " values (gen_random_uuid(), 'full', 'returned', 1, 1, 'retry.delay.250ms', clock_timestamp())"
    )

    def stuck() -> int:
        return read_depths(keeper.management, Names())["retry.relay"].moving

    held = wait_for(stuck, what="the relay to hold what its destination refuses")
    assert store.do(keeper()).stalled == (), "one look is not enough"
    assert store.do(keeper()).stalled == (Stall("retry.relay", held, ("full",)),)


def test_an_audit_pass_counts_statistics_and_says_how_far(store: AuditStore, keeper: AuditPass) -> None:
    began = datetime.now(UTC)
    store.do(keeper())
    store.claim(request("m"))
    store.schedule(M, 1, due_in_ms=-10)
    store.see(M, 1)

    def counted() -> bool:
        progress = store.do(keeper()).statistics
        assert progress is not None
        assert progress.counted_until >= began
        return _counted(store) == [("orders", 1, 1)]

    wait_for(counted, deadline=120, what="the steps to be counted, once transactions of other tests are over")


def _counted(store: AuditStore) -> list[tuple[Any, ...]]:
    return store.sql.execute(
        "select queue, sum(scheduled), sum(returned) from statistic where span = 'day' and kind = 'queue' group by 1"
    ).fetchall()


def test_statistics_are_counted_by_nobody_who_has_not_the_lock(store: AuditStore, keeper: AuditPass) -> None:
    store.sql.execute("select pg_advisory_lock(%s)", [AdvisoryLock.STATISTICS])
    assert store.do(keeper()).statistics is None
    store.sql.execute("select pg_advisory_unlock(%s)", [AdvisoryLock.STATISTICS])
    assert store.do(keeper()).statistics is not None


def test_a_failure_to_count_statistics_stops_nothing_else(
    store: AuditStore, keeper: AuditPass, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one that nobody expected. How far they are is still told."""
    store.do(keeper())
    for number, error in enumerate((AuditError("no"), ZeroDivisionError())):
        name = f"m-{number}"
        store.claim(request(name))
        store.schedule(id_of(name), 1, tier="retry.delay.250ms")
        store.age(id_of(name), 60 + 40)

        async def fails(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(maintenance, "count_new_steps", fails)
        found = store.do(keeper())
        assert found.noted == 1
        assert found.statistics is not None


def test_statistics_have_a_retention_of_their_own(store: AuditStore, keeper: AuditPass) -> None:
    days = {"hour": (1, 59, 61), "day": (1, 729, 731)}
    for span, ages in days.items():
        for age in ages:
            store.sql.execute(
                "insert into statistic (span, starts, kind, queue)"
                " values (%s, date_trunc('day', clock_timestamp() - %s * interval '1 day', 'UTC'), 'queue', 'orders')",
                (span, age),
            )
    store.sql.execute(
        "insert into statistic_error (queue, fingerprint, seen_at) values"
        " ('orders', 'old', clock_timestamp() - interval '731 days'), ('orders', 'new', clock_timestamp())"
    )
    store.do(keeper())
    left = store.sql.execute("select span, count(*) from statistic group by 1 order by 1").fetchall()
    assert left == [("day", 2), ("hour", 2)]
    assert store.sql.execute("select fingerprint from statistic_error").fetchall() == [("new",)]
