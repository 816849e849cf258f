"""Many come due in a pause; then service, broker and Postgres are killed and started again, and the pause is resumed.

A short form by default, with quick statistics; `TARRY_PAUSED=5000` has so many come due at a usual broker with a usual
service, and prints the figures.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from tarry import embedded
from tarry.core.names import Names
from tarry.operations.pause import pause, resume
from tarry.operations.paused_destination import read_paused_destinations
from tarry.store.database import migrate
from tests.integration.operations.operators import Operator
from tests.integration.operations.quick_service import TICK, QuickServices, quick_broker
from tests.integration.operations.witness import Seen, Witness, left_held_queue
from tests.support.installation import QUORUM, Installation
from tests.support.store import verified
from tests.support.waiting import wait_for

PAUSED = int(os.environ.get("TARRY_PAUSED", "300"))
QUICK = PAUSED < 1000
RATE = 150 if QUICK else 500
CANARIES = 111
QUEUE = "quick.orders"
OBSERVE = timedelta(seconds=2)


@pytest.mark.chaos
@pytest.mark.timeout(300 + PAUSED // 10)
def test_all_arrive_in_order_at_the_rate_after_a_canary(
    series: str | None,
    private_postgres: Callable[..., embedded.EmbeddedPostgres],
    tmp_path: Path,
) -> None:
    with quick_broker(series, quick=QUICK) as broker:
        postgres = private_postgres(durable=True)
        asyncio.run(migrate(postgres.dsn()))
        folder = tmp_path / "topology"
        with closing(
            Installation(broker.amqp_url, broker.management_url, postgres.dsn(), folder).apply()
        ) as installation:
            services = QuickServices(installation, quick=QUICK)
            try:
                _pause_kill_resume(installation, broker, postgres, services)
            finally:
                services.kill()


def _pause_kill_resume(
    installation: Installation, broker: embedded.Broker, postgres: embedded.EmbeddedPostgres, services: QuickServices
) -> None:
    operator, held = Operator(installation), f"retry.held.{QUEUE}"
    services.start().wait_ready()
    installation.declare(QUEUE)
    installation.request(QUEUE, "first")
    installation.wait_message(QUEUE)
    operator.do(lambda context: pause(context, QUEUE, actor="ann"))
    order = _copy_of_what_is_held(installation)
    for number in range(PAUSED):
        installation.request(QUEUE, f"m{number}")
    for queue in (order, held):
        wait_for(lambda name=queue: installation.depth(name) == PAUSED, deadline=120, what="all to be held")  # type: ignore[misc]
    installation.channel.queue_unbind(order, "retry.gate.held", f"~to:{QUEUE}")
    in_order = installation.take_ids(order, PAUSED, deadline=120)
    installation.close()
    services.kill()
    postgres.kill()
    broker.kill()
    broker.start()
    postgres.start()
    if QUICK:
        broker.ctl("eval", TICK)
    installation.reconnect()
    # A broker of the 3.10 series counts anew for some seconds after a restart.
    wait_for(lambda: installation.depth(held) == PAUSED, deadline=60, what="the held ones to be counted")
    with Witness(installation.amqp_url, QUEUE) as witness:
        services.start().wait_ready()
        operator.do(lambda context: resume(context, QUEUE, actor="ann", rate=RATE, canary=True, observe=OBSERVE))
        wait_for(lambda: len(witness.seen) >= PAUSED, deadline=150 + 2 * PAUSED / RATE, what="all to arrive")
        wait_for(lambda: not operator.do(read_paused_destinations), deadline=60, what="the pause to be over")
    assert [one.message_id for one in witness.seen] == in_order
    _judge(witness.seen)
    _audit_balances(installation)


def _copy_of_what_is_held(installation: Installation) -> str:
    """In the order in which it is held."""
    installation.channel.queue_declare("order", durable=True, arguments=QUORUM)
    installation.channel.queue_bind("order", "retry.gate.held", f"~to:{QUEUE}")
    return "order"


def _judge(seen: Sequence[Seen]) -> None:
    """The canaries one after the other, each watched before the next; then the rest, at the rate.

    The time of each release is in the x-death header: consumers may be slow and get many at once.
    """
    at, close_connection = [one.at_ms for one in seen], [left_held_queue(one, QUEUE) for one in seen]
    looks = [
        close_connection[1] - close_connection[0],
        close_connection[11] - close_connection[10],
        close_connection[111] - close_connection[110],
    ]
    average = (len(at) - CANARIES - 1) / (at[-1] - at[CANARIES]) * 1000
    in_a_second = Counter(close_connection[CANARIES:])
    fastest = max(in_a_second.values())
    early = min(one.at_ms - one.due_ms for one in seen)
    sys.stdout.write(
        f"\n{len(seen)} held through kill -9 of everything, all arrived once and in order; canaries 1, 10, 100 watched "
        f"for {[look.seconds for look in looks]} s; the rest arrived at {average:.0f}/s on average of {RATE}/s; "
        f"the broker released at most {fastest} in one second, over {len(in_a_second)} s; least drift {early} ms\n"
    )
    assert min(looks) >= OBSERVE
    assert fastest <= RATE * 1.3
    assert early >= 0


def _audit_balances(installation: Installation) -> None:
    look, balance = verified(installation.dsn, installation.address, Names())
    assert (look.verdict.lost, balance.lost, balance.twice, balance.held) == (0, 0, 0, 0)
    assert balance.returned == PAUSED + 1
