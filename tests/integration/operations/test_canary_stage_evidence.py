"""Canaries: a stage passes on reported successes or on acknowledgements, never because nothing was heard.

One broker with quick statistics and one service for all of them; each test has a queue of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pika
import psycopg
import pytest
from pika import BasicProperties

from tarry.client import Options
from tarry.core.names import Destination
from tarry.operations.canary import read_queue
from tarry.operations.context import OperatorContext
from tarry.operations.intake import pause_intake, resume_intake
from tarry.operations.pause import DestinationPause, pause, resume, show_pauses
from tests.integration.client.adapters import Blocking
from tests.integration.operations.operators import Operator
from tests.integration.operations.quick_service import STATISTICS, QuickServices, quick_broker
from tests.integration.operations.witness import Seen, Witness, left_held_queue
from tests.support.amqp import open_connection
from tests.support.installation import Installation
from tests.support.services import Services
from tests.support.spaces import drop_database, make_database
from tests.support.waiting import wait_for

OBSERVE = timedelta(seconds=1)
LONG = 180
USUAL = 7
"""Seconds; clearly more than a canary waits for statistics."""

EVENTS = "exchange:events"
HELD = {
    "rejected": 2,
    "unknown": 2,
    "reported": 12,
    "unconsumed": 3,
    "gone": 2,
    "busy": 1,
    "usual": 2,
    "outlived": 3,
    "crashed": 3,
    "foreign": 2,
}
"""For each queue, how many of its retries are held: all at once, which takes no longer than one."""

POLICIES = """
[ladder]
levels = 4

[[policy]]
name = "events"
match = { queue = "through.*" }
schedule = ["250ms"]
max_retries = 3
return_to = "exchange"

[[policy]]
name = "default"
schedule = ["500ms"]
max_retries = 3
"""

pytestmark = pytest.mark.timeout(500)


@dataclass
class Canaries:
    """The installation with its services, and an operator."""

    installation: Installation
    services: QuickServices
    operator: Operator

    def of(self, queue: str) -> Canary:
        if not self.services.running:
            self.services.start().wait_ready()
        return Canary(self, queue, queue)


@dataclass
class Canary:
    """One destination that is held."""

    all: Canaries
    queue: str
    label: str

    @property
    def installation(self) -> Installation:
        return self.all.installation

    @property
    def operator(self) -> Operator:
        return self.all.operator

    def in_held_queue(self) -> int:
        return self.installation.depth(f"retry.held.{self.label}")

    def resume(self, *, canary: bool = True) -> None:
        self.operator.do(
            lambda context: resume(context, self.label, actor="ann", rate=1000, canary=canary, observe=OBSERVE)
        )

    def shown(self) -> list[DestinationPause]:
        self.installation.connection.process_data_events()  # heartbeats: these tests are long
        return [one for one in self.operator.do(show_pauses).paused_destinations if one.destination == self.label]

    def problem(self) -> str:
        found = wait_for(
            lambda: [one.problem for one in self.shown() if one.problem], deadline=LONG, what="a problem to be shown"
        )
        return str(found[0])

    def stage(self) -> tuple[str, str]:
        [paused] = self.shown()
        return paused.state, paused.stage

    def over(self) -> None:
        wait_for(lambda: self.shown() == [], deadline=LONG, what="the release to be over")

    def arrived(self, witness: Witness, count: int) -> list[Seen]:
        def enough() -> bool:
            self.installation.connection.process_data_events()
            return len(witness.seen) >= count

        wait_for(enough, deadline=LONG, what=f"{count} to arrive")
        assert len(witness.seen) == count
        return witness.seen

    def dead_letter_to_tarry(self) -> None:
        """The queue anew: what is rejected in it is a request."""
        rejecting = {"x-queue-type": "quorum", "x-dead-letter-exchange": "retry.intake"}
        self.installation.channel.queue_delete(self.queue)
        self.installation.channel.queue_declare(self.queue, durable=True, arguments=rejecting)
        self.installation.channel.queue_bind(self.queue, "retry.deliver", f"~to:{self.queue}")

    def consumers(self, queue: str) -> int:
        return int(self.installation.channel.queue_declare(queue, passive=True).method.consumer_count)

    def unacked(self) -> int:
        reading = self.operator.do(lambda context: read_queue(context, self.queue))
        return reading.unacked if reading else 0


@pytest.fixture(scope="module")
def canaries(series: str | None, services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canaries]:
    folder = tmp_path_factory.mktemp("canaries") / "topology"
    maintenance = services.postgres()
    database = make_database(maintenance)
    with (
        quick_broker(series) as broker,
        closing(Installation(broker.amqp_url, broker.management_url, database.dsn, folder).apply()) as installation,
    ):
        installation.write_policies(POLICIES)
        installation.apply()
        running = QuickServices(installation)
        try:
            running.start().wait_ready()
            operator = Operator(installation)
            _pause_all(operator)
            yield Canaries(installation, running, operator)
        finally:
            running.kill()
    drop_database(maintenance, database)


def _pause_all(operator: Operator) -> None:
    """So many retries of each queue, in its held queue; and of the exchange."""
    installation = operator.installation
    installation.channel.exchange_declare("events", "fanout", durable=True)
    installation.channel.queue_bind(installation.declare("through.orders"), "events")
    installation.channel.exchange_bind("events", "retry.deliver", Destination("exchange", "events").key)
    for queue in HELD:
        installation.request(installation.declare(queue), "first")
    for queue in HELD:
        installation.wait_message(queue, deadline=60)

    async def pause_all(context: OperatorContext) -> None:
        for label in (*HELD, EVENTS):
            await pause(context, label, actor="ann")

    operator.do(pause_all)
    installation.channel.queue_bind(installation.declare("order"), "retry.gate.held", "~to:crashed")
    forged: dict[str, Any] = {"tarry-id": "no uuid", "tarry-round": 2**40, "tarry-queue": "foreign"}
    installation.channel.basic_publish("", "retry.held.foreign", b"by hand")
    installation.channel.basic_publish("", "retry.held.foreign", b"forged", pika.BasicProperties(headers=forged))
    for queue, count in HELD.items():
        for number in range(count):
            installation.request(queue, f"{queue}{number}")
    for number in range(2):
        installation.request("through.orders", f"event{number}", original_exchange="events")
    for label, count in (HELD | {EVENTS: 2, "foreign": 4}).items():
        held, wanted = f"retry.held.{label}", count
        wait_for(lambda q=held, n=wanted: installation.depth(q) == n, deadline=60, what=f"{held} to have all")  # type: ignore[misc]
    installation.channel.queue_unbind("order", "retry.gate.held", "~to:crashed")


def test_a_canary_fails_where_it_is_rejected(canaries: Canaries) -> None:
    canary = canaries.of("rejected")
    canary.dead_letter_to_tarry()
    with Witness(canary.installation.amqp_url, canary.queue, rejects=True) as witness:
        canary.resume()
        assert canary.problem() == "1 of a canary of 1 failed again"
        assert (canary.stage(), len(witness.seen)) == (("canary_failed", ""), 1)
        wait_for(
            lambda: canary.in_held_queue() == 2, what="the canary to come back to the held queue after its new delay"
        )


def test_a_canary_is_sent_behind_messages_that_are_not_tarrys_own(canaries: Canaries) -> None:
    """Nothing can be observed of those, so they are not the canary."""
    canary = canaries.of("foreign")
    canary.resume()
    assert "queue 'foreign' has no consumers (1 ready, 0 unacknowledged)" in canary.problem()
    assert (canary.stage(), canary.in_held_queue()) == (("releasing", "canary of 1"), 1)
    with Witness(canary.installation.amqp_url, canary.queue) as witness:
        canary.arrived(witness, 2)
    canary.over()


def test_a_canary_waits_while_the_intake_is_paused(canaries: Canaries) -> None:
    """It may have failed, and its request waits: its queue is empty, and nobody knows."""
    canary = canaries.of("unknown")
    canary.dead_letter_to_tarry()
    canary.operator.do(lambda context: pause_intake(context, actor="ann"))
    try:
        wait_for(lambda: canary.consumers("retry.scheduled") == 0, what="the router to take no requests")
        with Witness(canary.installation.amqp_url, canary.queue, rejects=True) as witness:
            canary.resume()
            assert "the intake is paused" in canary.problem()
            assert (canary.stage(), len(witness.seen)) == (("releasing", "canary of 1"), 1)
            canary.operator.do(lambda context: resume_intake(context, actor="ann"))
            wait_for(lambda: canary.stage()[0] == "canary_failed", deadline=LONG, what="the canary to fail")
    finally:
        canary.operator.do(lambda context: resume_intake(context, actor="ann"))


def test_a_canary_passes_on_reports_while_others_have_messages(canaries: Canaries) -> None:
    """A message that another consumer keeps unacknowledged hides the acknowledgements; the reports do not need them."""
    canary = canaries.of("reported")
    with open_connection(canary.installation.amqp_url) as connection:
        channel = connection.channel()
        channel.basic_publish("", canary.queue, b"kept")
        wait_for(lambda: channel.basic_get(canary.queue)[0], what="the message that is kept")
        with Blocking(canary.installation.amqp_url, canary.queue, lambda *_: None, Options(report_seconds=0.1)):
            canary.resume()
            canary.over()
    with psycopg.connect(canary.installation.dsn) as connection:
        sql = "select state, count(*) from retry where message_id like 'reported%' group by 1"
        states: dict[str, int] = dict(connection.execute(sql).fetchall())
    assert states == {"succeeded": 12}


def test_a_canary_waits_for_consumers_and_a_resume_can_do_without(canaries: Canaries) -> None:
    canary = canaries.of("unconsumed")
    canary.resume()
    assert "queue 'unconsumed' has no consumers (1 ready, 0 unacknowledged)" in canary.problem()
    assert canary.in_held_queue() == 2
    canary.resume(canary=False)
    canary.over()
    assert canary.installation.depth(canary.queue) == 3


def test_a_canary_fails_where_its_queue_is_gone(canaries: Canaries) -> None:
    canary = canaries.of("gone")
    canary.installation.channel.queue_delete(canary.queue)
    canary.resume()
    assert canary.problem() == "1 of a canary of 1 failed again"
    assert canary.in_held_queue() == 1


def test_a_canary_passes_on_a_queue_that_is_never_empty(canaries: Canaries) -> None:
    """A message that is kept unacknowledged: the queue has to acknowledge as many others as it held, and the canary."""
    canary = canaries.of("busy")
    with open_connection(canary.installation.amqp_url) as connection:
        channel = connection.channel()
        channel.basic_publish("", canary.queue, b"kept")
        wait_for(lambda: channel.basic_get(canary.queue)[0], what="the message that is kept")
        wait_for(lambda: canary.unacked() == 1, what="the statistics to have it")
        with Witness(canary.installation.amqp_url, canary.queue) as witness:
            canary.resume()
            assert "acknowledged 0 of 2 (0 ready, 1 unacknowledged)" in canary.problem()
            for number in range(2):
                channel.basic_publish("", canary.queue, b"new", BasicProperties(message_id=f"new{number}"))
            canary.over()
    assert sorted(one.message_id for one in witness.seen) == ["busy0", "new0", "new1"]


def test_a_canary_is_watched_for_the_usual_time_to_fail(canaries: Canaries) -> None:
    assert USUAL > STATISTICS + 3
    canary = canaries.of("usual")
    with psycopg.connect(canary.installation.dsn) as connection:
        connection.execute(
            "insert into retry (id, queue, state, round) select gen_random_uuid(), %s, 'in_review', 2 "
            "from generate_series(1, 20)",
            [canary.queue],
        )
        connection.execute(
            "insert into transition (retry_id, round, state, actor, at) "
            "select id, n, (array['returned', 'claimed'])[n], 'test', clock_timestamp() + n * %s * interval '1 second' "
            "from retry, generate_series(1, 2) as n where state = 'in_review' and queue = %s",
            [USUAL, canary.queue],
        )
    with Witness(canary.installation.amqp_url, canary.queue) as witness:
        canary.resume()
        first, second = canary.arrived(witness, 2)
    apart = left_held_queue(second, canary.label) - left_held_queue(first, canary.label)
    assert apart >= timedelta(seconds=USUAL)


def test_a_canary_outlives_the_services_that_watch_it(canaries: Canaries) -> None:
    canary, services = canaries.of("outlived"), canaries.services
    services.start().wait_ready()
    with Witness(canary.installation.amqp_url, canary.queue, hangs=True) as witness:
        canary.resume()
        canary.arrived(witness, 1)
        services.kill()
        routers = [services.start(), services.start()]
        assert "acknowledged 0 of 1" in canary.problem()
        said = [line for router in routers for line in router.logged("canary not passed")]
        told = [(line["destination"], line["size"]) for line in said if line["destination"] == canary.label]
        assert told == [(canary.label, 1)]
        assert (len(witness.seen), canary.in_held_queue()) == (1, 2)
        witness.hangs = False
        wait_for(lambda: canary.stage() == ("releasing", "canary of 10"), deadline=LONG, what="the next canary")
        assert [one.problem for one in canary.shown()] == [None]
        canary.over()
        canary.arrived(witness, 3)


def test_a_canary_that_a_crash_kept_back_is_let_go(canaries: Canaries) -> None:
    """The canary was recorded, and the service ended before its release."""
    canary, installation = canaries.of("crashed"), canaries.installation
    canaries.services.kill()
    canary.resume()
    first, _ = installation.wait_message("order")
    headers = first.headers or {}
    member = {"id": headers["tarry-id"], "round": headers["tarry-round"], "queue": canary.queue}
    with psycopg.connect(installation.dsn) as connection:
        connection.execute(
            "update paused_destination set stage_ids = %s::jsonb, stage_since = clock_timestamp()"
            " where destination = %s",
            [json.dumps([member], default=str), canary.label],
        )
    with Witness(installation.amqp_url, canary.queue) as witness:
        canaries.services.start()
        canary.over()
        canary.arrived(witness, 3)
    assert [one.message_id for one in witness.seen] == [first.message_id, *installation.take_ids("order", 2)]


def test_a_canary_of_an_exchange_waits_for_the_queue_it_failed_in(canaries: Canaries) -> None:
    canary = canaries.of("through.orders")
    canary.label = EVENTS
    with Witness(canary.installation.amqp_url, canary.queue, hangs=True) as witness:
        canary.resume()
        assert "queue 'through.orders' acknowledged 0 of 1" in canary.problem()
        witness.hangs = False
        canary.over()
        canary.arrived(witness, 2)
