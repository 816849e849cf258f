"""A destination fails everything. Its breaker opens, and survives kill -9 of router, broker and Postgres; a destination
that hangs gets no more; once it has recovered, the breaker closes by itself. Another destination gets its returns.

`TARRY_BREAKER=2000` has so many fail at a usual broker with a usual service and the default times, and prints the drift
of the other destination before and during the failure.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest

from tarry import embedded
from tarry.amqp.management import Management
from tarry.audit.verify import AuditRules
from tarry.core.breaker import BreakerState
from tarry.core.names import Names
from tarry.operations.breaker import BreakerView, show_breaker
from tarry.store.database import migrate
from tests.integration.operations.operators import Operator
from tests.integration.operations.quick_service import QuickServices, quick_broker
from tests.integration.operations.witness import Seen, Witness
from tests.support.installation import Installation
from tests.support.router import Router
from tests.support.store import verified
from tests.support.waiting import wait_for

MANY = int(os.environ.get("TARRY_BREAKER", "30"))
QUICK = MANY < 1000
LONG = 120 if QUICK else 600
FRAIL, SOUND, HELD = "frail", "sound", "retry.held.frail"
RULE = (
    '{ failed = "50%", of = 10, within = "20s", wait = "2s", longest_wait = "4s" }'
    if QUICK
    else '{ failed = "50%", of = 20, within = "1m", wait = "30s", longest_wait = "15m" }'
)
POLICIES = f"""
[ladder]
levels = 4

[[policy]]
name = "guarded"
match = {{ queue = "*" }}
schedule = ["500ms"]
max_retries = 500
breaker = {RULE}
"""

pytestmark = pytest.mark.timeout(4 * LONG + 120)


@dataclass
class Scene:
    """An installation whose broker, Postgres and service can be killed."""

    installation: Installation
    broker: embedded.Broker
    postgres: embedded.EmbeddedPostgres
    services: QuickServices
    operator: Operator

    def breaker(self) -> BreakerView:
        return self.operator.do(lambda context: show_breaker(context, FRAIL))

    def wait_state(self, state: BreakerState) -> BreakerView:
        wait_for(lambda: self.breaker().state is state, deadline=LONG, what=f"the breaker to be {state}")
        return self.breaker()

    def changes(self, after: datetime | None = None) -> list[str]:
        """The changes of the breaker, in order."""
        sql = (
            "select kind from action where target = %s and kind like 'breaker%%' and outcome ? 'state' "
            "and at > coalesce(%s::timestamptz, '-infinity') order by at"
        )
        return [row[0] for row in self.installation.rows(sql, FRAIL, after)]

    def now(self) -> datetime:
        ((now,),) = self.installation.rows("select clock_timestamp()")
        assert isinstance(now, datetime)
        return now

    def kill_and_restart_everything(self) -> Router:
        self.installation.close()
        self.services.kill()
        self.postgres.kill()
        self.broker.kill()
        self.broker.start()
        self.postgres.start()
        # The queues that the broker has recovered report as seldom as usual: their statistics are believed later.
        self.services.quick = False
        self.installation.reconnect()
        return self.services.start().wait_ready()


def _was_held(delivery: Seen) -> bool:
    deaths: Any = delivery.headers.get("x-death", [])
    return any(death["queue"] == HELD for death in deaths)


def _handed_over(witnesses: list[Witness], since: datetime) -> list[Seen]:
    """What came due at the frail destination since the held binding was confirmed, and was delivered all the same."""
    found = [one for witness in witnesses for one in list(witness.seen)]
    return [one for one in found if one.due_ms > since.timestamp() * 1000 or _was_held(one)]


def test_breaker_protects_a_destination_that_fails_and_closes_when_it_has_recovered(
    series: str | None, private_postgres: Callable[..., embedded.EmbeddedPostgres], tmp_path: Path
) -> None:
    with quick_broker(series, quick=QUICK) as broker:
        postgres = private_postgres(durable=True)
        asyncio.run(migrate(postgres.dsn()))
        address = (broker.amqp_url, broker.management_url, postgres.dsn())
        with closing(Installation(*address, tmp_path / "topology", POLICIES).apply()) as installation:
            services = QuickServices(installation, quick=QUICK)
            try:
                services.start().wait_ready()
                _fail_and_recover(Scene(installation, broker, postgres, services, Operator(installation)))
            finally:
                services.kill()


def _fail_and_recover(scene: Scene) -> None:
    installation, url = scene.installation, scene.installation.amqp_url
    for queue in (FRAIL, SOUND):
        installation.declare(queue, x_dead_letter_exchange="retry.intake")
        installation.channel.queue_bind(queue, "retry.deliver", f"~to:{queue}")
    with Witness(url, SOUND) as sound:
        calm = _drifts(installation, sound, "before", MANY)
        with Witness(url, FRAIL, rejects=True) as frail:
            _request(installation, FRAIL, "m", MANY)
            opened = scene.wait_state(BreakerState.OPEN)
            since = _bound_at(scene)
            assert opened.policy == "guarded"
            assert opened.reason.endswith("returns failed again")
            storm = _drifts(installation, sound, "during", MANY)
            wait_for(lambda: scene.changes().count("breaker_opened") >= 2, deadline=LONG, what="a probe to fail")
            probes = scene.changes().count("breaker_half_opened")
            assert 1 <= len(_handed_over([frail], since)) <= probes
    assert all(one.at_ms >= one.due_ms and not _was_held(one) for one in sound.seen)
    router = scene.kill_and_restart_everything()
    bound = Management(installation.address).bindings_from("retry.gate.held")
    assert [one["routing_key"] for one in bound] == [f"~to:{FRAIL}"]
    with Witness(url, FRAIL, hangs=True) as again:
        _hangs(scene, again)
        assert len(_handed_over([frail, again], since)) <= scene.changes().count("breaker_half_opened")
        assert router.metric("tarry_breaker_state", destination=FRAIL) == 2
        recovered = scene.now()
        again.hangs = False
        closed = scene.wait_state(BreakerState.CLOSED)
        wait_for(lambda: _ids(again) == {f"m{number}" for number in range(MANY)}, deadline=LONG, what="all to arrive")
        took = scene.now() - recovered
    changes = scene.changes(recovered)
    assert changes == ["breaker_closing", "breaker_closed"]  # by the probe that it has got: within one wait
    assert closed.reason == "nothing waits any more"
    _ramps(again)
    look, balance = verified(
        installation.dsn, installation.address, Names(), rules=AuditRules(grace=timedelta(seconds=5))
    )
    assert (look.verdict.lost, balance.lost, balance.twice, balance.overdue) == (0, 0, 0, 0)
    if not QUICK:
        assert closed.wait_s is not None
        assert closed.since is not None
        closed_after = (closed.since - recovered).total_seconds()
        assert closed_after <= 2 * closed.wait_s
        sys.stdout.write(
            f"\n{MANY} failed: {probes} probes in the time of two waits; drift p99 of the other destination "
            f"{calm:.0f} ms before, {storm:.0f} ms during; closed {closed_after:.0f} s after the recovery, the "
            f"wait was {closed.wait_s:g} s; all had arrived after {took.total_seconds():.0f} s\n"
        )


def _request(installation: Installation, queue: str, name: str, count: int) -> None:
    for number in range(count):
        installation.request(queue, f"{name}{number}")


def _drifts(installation: Installation, witness: Witness, name: str, count: int) -> float:
    """So many returns, all of which arrive: the 99th percentile of their drift, in milliseconds."""
    before = len(witness.seen)
    _request(installation, SOUND, name, count)
    wait_for(lambda: len(witness.seen) == before + count, deadline=LONG, what=f"all of {name} to arrive")
    return quantiles([one.at_ms - one.due_ms for one in witness.seen[before:]], n=100)[98]


def _bound_at(scene: Scene) -> datetime:
    sql = "select bound_at from paused_destination where destination = %s and bound_at is not null"
    ((at,),) = wait_for(lambda: scene.installation.rows(sql, FRAIL), deadline=LONG, what="the held binding")
    assert isinstance(at, datetime)
    return at


def _hangs(scene: Scene, witness: Witness) -> None:
    """The probe is taken, and nobody knows what becomes of it: the breaker stays half-open."""
    wait_for(lambda: witness.seen, deadline=LONG, what="the probe")
    found = wait_for(lambda: scene.breaker().problem, deadline=LONG, what="it to say what it waits for")
    assert "the canary of 1 has not passed" in str(found)
    assert "tarry breakers close frail" in str(found)
    threading.Event().wait(5)  # longer than the longest wait: no deadline lets a canary pass
    assert (scene.breaker().state, len(witness.seen)) == (BreakerState.HALF_OPEN, 1)


def _ids(witness: Witness) -> set[str]:
    return {one.message_id for one in witness.seen}


def _ramps(witness: Witness) -> None:
    """After the probe, at 1 a second, then 2, then 4: the first fifteen take four seconds at least."""
    released = [_left(one) for one in witness.seen if _was_held(one)]
    assert released == sorted(released)
    assert released[15] - released[1] >= timedelta(seconds=3)


def _left(delivery: Seen) -> datetime:
    deaths: Any = delivery.headers["x-death"]
    found = [death["time"] for death in deaths if death["queue"] == HELD]
    assert isinstance(found[0], datetime)
    return found[0]
