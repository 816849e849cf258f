"""Audit passes find what is unusual in the statistics: it begins once and ends once, whoever is the leader."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tarry.amqp.management import Management
from tarry.amqp.url import Address
from tarry.analytics.anomalies import Kind
from tarry.audit.anomalies import AnomalyNow, AnomalyWatch
from tarry.audit.maintenance import AuditFindings, AuditPass, AuditPassRules
from tarry.core.names import Names
from tarry.store.database import SessionSettings
from tarry.topology.apply import apply
from tarry.topology.model import Topology
from tests.support.audit_store import AuditStore
from tests.support.histories import count_statistics, store_returns, store_usual_days
from tests.support.spaces import Vhost
from tests.support.store import in_session

pytestmark = pytest.mark.one_series

TOPOLOGY = Topology.model_validate(
    {"policy": [{"name": "default", "schedule": ["250ms"], "max_retries": 2}], "ladder": {"levels": 2}}
)


@pytest.fixture
def address(vhost: Vhost) -> Address:
    found = Address.parse(vhost.amqp_url, management_url=vhost.management_url)
    apply(TOPOLOGY, found)
    return found


class Passes:
    """Audit passes of a service, each after the statistics were counted."""

    def __init__(self, store: AuditStore, address: Address) -> None:
        self.store, self.address = store, address
        self.restart()

    def restart(self) -> None:
        rules = AuditPassRules(quiet=None, keep=None)
        self.keeper = AuditPass(self.store.dsn, Names(), Management(self.address), "keeper", rules)

    def make(self) -> tuple[AnomalyNow, ...]:
        in_session(self.store.dsn, count_statistics, SessionSettings.STATISTICS)
        found: AuditFindings = self.store.do(self.keeper())
        return found.anomalies

    def happen(self, good: int, bad: int, queue: str = "orders") -> None:
        store_returns(self.store.dsn, datetime.now(UTC), good=good, bad=bad, queue=queue)

    def events(self) -> list[tuple[str, str]]:
        found = self.store.sql.execute("select kind, target from action where xid is not null order by at").fetchall()
        return [(kind, target) for kind, target in found]


@pytest.fixture
def passes(store: AuditStore, address: Address) -> Passes:
    return Passes(store, address)


def test_an_outage_raises_one_anomaly_that_ends_by_itself(store: AuditStore, passes: Passes) -> None:
    store_usual_days(store.dsn)
    passes.happen(good=40, bad=15)
    assert passes.make() == ()

    passes.happen(good=2, bad=120)
    (found,) = passes.make()
    assert (found.kind, found.name, found.error, found.usual_rate) == (Kind.QUEUE, "orders", "TimeoutError", 0.25)
    assert found.describe() == "orders: 76% of 177 returns failed again, usually 25%, most with TimeoutError"
    assert passes.events() == [("anomaly_began", "orders")]

    passes.happen(good=0, bad=40)
    passes.restart()
    (again,) = passes.make()
    assert (again.since, again.failed) == (found.since, 175)
    assert passes.events() == [("anomaly_began", "orders")], "once, also after a restart"

    passes.happen(good=900, bad=200)
    assert passes.make() == ()
    assert passes.events() == [("anomaly_began", "orders"), ("anomaly_ended", "orders")]
    assert passes.make() == ()
    ended = store.sql.execute("select highest_rate, why_ended from anomaly").fetchall()
    assert [(round(rate, 2), why) for rate, why in ended] == [(0.81, "the failure rate is near the usual one")]


def test_small_queues_of_a_policy_are_judged_together(store: AuditStore, passes: Passes) -> None:
    queues = [f"tenant-{number}" for number in range(4)]
    for queue in queues:
        store_usual_days(store.dsn, queue=queue)
        passes.happen(good=1, bad=20, queue=queue)

    (found,) = passes.make()

    assert (found.kind, found.name, found.returned, found.failed) == (Kind.POLICY, "gold", 84, 80)
    assert passes.events() == [("anomaly_began", "policy gold")]


def test_one_small_queue_is_not_its_policy_and_a_new_one_has_no_usual(store: AuditStore, passes: Passes) -> None:
    for queue in ("small", "other"):
        store_usual_days(store.dsn, queue=queue)
    passes.happen(good=20, bad=3, queue="other")
    passes.happen(good=0, bad=45, queue="small")
    passes.happen(good=0, bad=500, queue="new")

    assert passes.make() == ()


def test_late_statistics_are_not_judged(store: AuditStore, passes: Passes) -> None:
    store_usual_days(store.dsn)
    passes.happen(good=0, bad=200)
    in_session(store.dsn, count_statistics, SessionSettings.STATISTICS)
    store.sql.execute("update statistic_position set counted_until = clock_timestamp() - interval '11 minutes'")

    in_session(store.dsn, AnomalyWatch("keeper").look)
    assert passes.events() == []
    assert len(passes.make()) == 1
