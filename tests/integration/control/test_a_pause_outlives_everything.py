"""Many come due in a pause; then service, broker and Postgres are killed and started again, and the pause is resumed.

A short form by default; `TARRY_PAUSED=5000` has so many come due, and prints the figures.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tarry import embedded
from tarry.audit.migrate import migrate
from tarry.audit.report import report
from tarry.audit.verify import Auditor, Rules
from tarry.broker.management import Management
from tarry.control.hold import read_holds
from tarry.control.holds import pause, resume
from tarry.core.names import Names
from tests.harness.waiting import wait_for
from tests.integration.control.hands import Hands
from tests.integration.control.witness import Seen, Witness
from tests.integration.router.serving import QUORUM, Place, routers

PAUSED = int(os.environ.get("TARRY_PAUSED", "400"))
RATE = 500 if PAUSED >= 1000 else 150
CANARIES = 111
QUEUE = "quick.orders"


@pytest.mark.timeout(300 + PAUSED // 10)
def test_all_arrive_in_order_at_the_rate_after_a_canary(
    private_broker: Callable[[], embedded.Broker],
    private_postgres: Callable[..., embedded.EmbeddedPostgres],
    tmp_path: Path,
) -> None:
    broker, postgres = private_broker(), private_postgres(durable=True)
    migrate(postgres.dsn())
    place = Place(broker.amqp_url, broker.management_url, postgres.dsn(), tmp_path / "topology", lambda *_: None)
    hands = Hands(place)
    with closing(place), routers(place) as start:
        with hands.watching():
            router = start().wait_ready()
            place.origin(QUEUE)
            place.request(QUEUE, "first")
            place.wait_message(QUEUE)
            hands.do(lambda desk: pause(desk, QUEUE, actor="ann"))
            order = _copy_of_what_is_held(place)
            for number in range(PAUSED):
                place.request(QUEUE, f"m{number}")
            for queue in (order, f"retry.held.{QUEUE}"):
                wait_for(lambda name=queue: place.depth(name) == PAUSED, deadline=60, what="all to be held")  # type: ignore[misc]
            place.channel.queue_unbind(order, "retry.gate.held", f"~to:{QUEUE}")
        place.close()
        router.kill()
        postgres.kill()
        broker.kill()
        broker.start()
        postgres.start()
        _reconnect(place)
        # A broker of the 3.10 series counts anew for some seconds after a restart.
        wait_for(lambda: place.depth(f"retry.held.{QUEUE}") == PAUSED, what="the held ones to be counted")
        with hands.watching(), Witness(place.amqp_url, QUEUE) as witness:
            start().wait_ready()
            look = timedelta(seconds=2)
            hands.do(lambda desk: resume(desk, QUEUE, actor="ann", rate=RATE, canary=True, look=look))
            wait_for(lambda: len(witness.seen) >= PAUSED, deadline=150 + 2 * PAUSED / RATE, what="all to arrive")
            wait_for(lambda: not hands.do(read_holds), what="the hold to be over")
        assert [one.message_id for one in witness.seen] == place.take(order, PAUSED, deadline=60)
        _judge(witness.seen)
        _books_balance(place)


def _copy_of_what_is_held(place: Place) -> str:
    """In the order in which it is held."""
    place.channel.queue_declare("order", durable=True, arguments=QUORUM)
    place.channel.queue_bind("order", "retry.gate.held", f"~to:{QUEUE}")
    return "order"


def _reconnect(place: Place) -> None:
    place.connect()


def _judge(seen: Sequence[Seen]) -> None:
    """The canaries one after the other, each watched before the next; then the rest, at the rate.

    When each was let go is in the broker's own record on the message: consumers may be slow, and get them in a bunch.
    """
    at = [one.at_ms for one in seen]
    looks = [at[1] - at[0], at[11] - at[10], at[111] - at[110]]
    average = (len(at) - CANARIES - 1) / (at[-1] - at[CANARIES]) * 1000
    in_a_second = Counter(map(_let_go, seen[CANARIES:]))
    fastest = max(in_a_second.values())
    early = min(one.at_ms - one.due_ms for one in seen)
    sys.stdout.write(
        f"\n{len(seen)} held through kill -9 of everything, all arrived once and in order; canaries 1, 10, 100 watched "
        f"for {looks} ms; the rest arrived at {average:.0f}/s on average of {RATE}/s; the broker let go at most "
        f"{fastest} in one second, over {len(in_a_second)} seconds; least drift {early} ms\n"
    )
    assert min(looks) >= 1_800
    assert fastest <= RATE * 1.3
    assert early >= 0


def _let_go(one: Seen) -> datetime:
    """The second in which it left the held queue."""
    deaths = one.headers["x-death"]
    assert isinstance(deaths, list)
    [time] = [death["time"] for death in deaths if death["queue"] == f"retry.held.{QUEUE}"]
    assert isinstance(time, datetime)
    return time


def _books_balance(place: Place) -> None:
    with report(place.dsn) as books:
        auditor = Auditor(books, Management(place.address), Names(), Rules(grace=timedelta(seconds=1)))
        look, balance = auditor.settled(), auditor.balance()
    assert (look.verdict.lost, balance.lost, balance.twice, balance.held) == (0, 0, 0, 0)
    assert balance.returned == PAUSED + 1
