"""Canaries: a stage passes on reported successes or on acknowledgements, never because nothing was heard."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta

import psycopg
import pytest
from pika import BasicProperties

from tarry.client import Options
from tarry.control.canary_queues import read_queue
from tarry.control.held import Held, show_holds
from tarry.control.holds import pause, resume
from tarry.control.intake import pause_intake, resume_intake
from tarry.core.names import Destination
from tests.harness.amqp import open_connection
from tests.harness.waiting import wait_for
from tests.integration.client.shells import Blocking
from tests.integration.control.hands import Hands
from tests.integration.control.witness import Witness
from tests.integration.router.serving import Place, Router

QUEUE = "quick.orders"
LOOK = timedelta(seconds=1)
LONG = 180
"""Seconds. Without reports each canary waits for statistics of the broker, which are seconds old."""

THROUGH_THE_EXCHANGE = """
[ladder]
levels = 4

[[policy]]
name = "default"
schedule = ["500ms"]
max_retries = 3
return_to = "exchange"
"""

pytestmark = pytest.mark.timeout(500)


@pytest.fixture
def hands(place: Place, start: Callable[..., Router]) -> Iterator[Hands]:
    start().wait_ready()
    hands = Hands(place)
    with hands.watching():
        yield hands


def held(hands: Hands, count: int) -> str:
    """So many retries of a known queue wait in its held queue; and a queue that has them too, in the same order."""
    hands.place.origin(QUEUE)
    hands.place.request(QUEUE, "first")
    hands.place.wait_message(QUEUE)
    hands.do(lambda desk: pause(desk, QUEUE, actor="ann"))
    order = hands.place.origin("order")
    hands.place.channel.queue_bind(order, "retry.gate.held", f"~to:{QUEUE}")
    for number in range(count):
        hands.place.request(QUEUE, f"m{number:03}")
    wait_for(lambda: in_hold(hands) == count, deadline=60, what=f"{count} to be held")
    hands.place.channel.queue_unbind(order, "retry.gate.held", f"~to:{QUEUE}")
    return order


def in_hold(hands: Hands) -> int:
    return hands.place.depth(f"retry.held.{QUEUE}")


def resumed(hands: Hands, *, canary: bool = True, look: timedelta = LOOK) -> None:
    hands.do(lambda desk: resume(desk, QUEUE, actor="ann", rate=1000, canary=canary, look=look))


def shown(hands: Hands) -> list[Held]:
    hands.place.connection.process_data_events()  # its heartbeats: these tests are longer than it may be silent
    return hands.do(show_holds).holds


def problem(hands: Hands) -> str:
    [hold] = wait_for(lambda: [one for one in shown(hands) if one.problem], deadline=LONG, what="a problem to be shown")
    return str(hold.problem)


def stage(hands: Hands) -> tuple[str, str]:
    [hold] = shown(hands)
    return hold.state, hold.stage


def dead_letter_to_tarry(hands: Hands) -> None:
    """The queue anew: what is rejected in it is a request."""
    rejecting = {"x-queue-type": "quorum", "x-dead-letter-exchange": "retry.intake"}
    hands.place.channel.queue_delete(QUEUE)
    hands.place.channel.queue_declare(QUEUE, durable=True, arguments=rejecting)
    hands.place.channel.queue_bind(QUEUE, "retry.deliver", f"~to:{QUEUE}")


def consumers(hands: Hands, queue: str) -> int:
    return int(hands.place.channel.queue_declare(queue, passive=True).method.consumer_count)


def unacked(hands: Hands) -> int:
    reading = hands.do(lambda desk: read_queue(desk, QUEUE))
    return reading.unacked if reading else 0


def over(hands: Hands) -> None:
    wait_for(lambda: shown(hands) == [], deadline=LONG, what="the release to be over")


def test_a_canary_stops_at_a_destination_that_hangs(hands: Hands) -> None:
    held(hands, 300)
    with Witness(hands.place.amqp_url, QUEUE, hangs=True) as witness:
        resumed(hands)
        assert "acknowledged 0 of 1 (0 ready, 1 unacknowledged)" in problem(hands)
        assert stage(hands) == ("releasing", "canary of 1")
        assert (len(witness.seen), in_hold(hands)) == (1, 299)
        witness.hangs = False
        wait_for(lambda: stage(hands) == ("releasing", "canary of 10"), deadline=LONG, what="the next canary")
        assert [one.problem for one in shown(hands)] == [None]


def test_a_canary_passes_where_consumers_only_acknowledge(hands: Hands) -> None:
    order = held(hands, 300)
    steps: set[int] = set()
    with Witness(hands.place.amqp_url, QUEUE) as witness:
        resumed(hands)

        def all_there() -> bool:
            steps.add(len(witness.seen))
            hands.place.connection.process_data_events()
            return len(witness.seen) == 300

        wait_for(all_there, deadline=LONG, what="all to arrive")
        over(hands)
    assert {1, 11, 111} <= steps
    assert [one.message_id for one in witness.seen] == hands.place.take(order, 300)


def test_a_canary_fails_where_it_is_rejected(hands: Hands) -> None:
    held(hands, 30)
    dead_letter_to_tarry(hands)
    with Witness(hands.place.amqp_url, QUEUE, rejects=True) as witness:
        resumed(hands)
        assert problem(hands) == "1 of a canary of 1 failed again"
        assert (stage(hands), len(witness.seen)) == (("canary_failed", ""), 1)
        wait_for(lambda: in_hold(hands) == 30, what="the canary to come back to the hold after its new delay")


def test_a_canary_waits_while_the_intake_is_paused(hands: Hands) -> None:
    """It may have failed, and its request waits: its queue is empty, and nobody knows."""
    held(hands, 30)
    dead_letter_to_tarry(hands)
    hands.do(lambda desk: pause_intake(desk, actor="ann"))
    wait_for(lambda: consumers(hands, "retry.scheduled") == 0, what="the router to take no requests")
    with Witness(hands.place.amqp_url, QUEUE, rejects=True) as witness:
        resumed(hands)
        assert "the intake is paused" in problem(hands)
        assert (stage(hands), len(witness.seen)) == (("releasing", "canary of 1"), 1)
        hands.do(lambda desk: resume_intake(desk, actor="ann"))
        wait_for(lambda: stage(hands)[0] == "canary_failed", deadline=LONG, what="the canary to fail")


def test_a_canary_passes_on_reports_while_others_hold_messages(hands: Hands) -> None:
    """A message that another consumer keeps unacknowledged hides the acknowledgements; the reports do not need them."""
    held(hands, 30)
    with open_connection(hands.place.amqp_url) as connection:
        channel = connection.channel()
        channel.basic_publish("", QUEUE, b"kept")
        wait_for(lambda: channel.basic_get(QUEUE)[0], what="the message that is kept")
        with Blocking(hands.place.amqp_url, QUEUE, lambda *_: None, Options(report_seconds=0.1)):
            resumed(hands)
            over(hands)
    with psycopg.connect(hands.place.dsn) as connection:
        states: dict[str, int] = dict(
            connection.execute("select state, count(*) from retry where message_id like 'm%' group by 1")
        )
    assert states == {"succeeded": 30}


def test_a_canary_waits_for_consumers_and_a_resume_can_do_without(hands: Hands) -> None:
    held(hands, 30)
    resumed(hands)
    assert f"queue '{QUEUE}' has no consumers (1 ready, 0 unacknowledged)" in problem(hands)
    assert in_hold(hands) == 29
    resumed(hands, canary=False)
    over(hands)
    assert hands.place.depth(QUEUE) == 30


def test_a_canary_fails_where_its_queue_is_gone(hands: Hands) -> None:
    held(hands, 30)
    hands.place.channel.queue_delete(QUEUE)
    resumed(hands)
    assert problem(hands) == "1 of a canary of 1 failed again"
    assert in_hold(hands) == 29


def test_a_canary_passes_on_a_queue_that_is_never_empty(hands: Hands) -> None:
    """A message that is kept unacknowledged: the queue has to acknowledge as many others as it held, and the canary."""
    held(hands, 1)
    with open_connection(hands.place.amqp_url) as connection:
        channel = connection.channel()
        channel.basic_publish("", QUEUE, b"kept")
        wait_for(lambda: channel.basic_get(QUEUE)[0], what="the message that is kept")
        wait_for(lambda: unacked(hands) == 1, what="the statistics to have it")
        with Witness(hands.place.amqp_url, QUEUE) as witness:
            resumed(hands)
            assert "acknowledged 0 of 2 (0 ready, 1 unacknowledged)" in problem(hands)
            for number in range(2):
                channel.basic_publish("", QUEUE, b"new", BasicProperties(message_id=f"new{number}"))
            over(hands)
    assert sorted(one.message_id for one in witness.seen) == ["m000", "new0", "new1"]


def test_a_canary_is_watched_for_the_usual_time_to_fail(hands: Hands) -> None:
    held(hands, 2)
    with psycopg.connect(hands.place.dsn) as books:
        books.execute(
            "insert into retry (id, queue, state, round) select gen_random_uuid(), %s, 'in_review', 2 "
            "from generate_series(1, 20)",
            [QUEUE],
        )
        books.execute(
            "insert into transition (retry_id, round, state, actor, at) "
            "select id, n, (array['returned', 'claimed'])[n], 'test', clock_timestamp() + n * interval '20 seconds' "
            "from retry, generate_series(1, 2) as n where state = 'in_review'"
        )
    with Witness(hands.place.amqp_url, QUEUE) as witness:
        resumed(hands)
        over(hands)
    first, second = witness.seen
    assert second.at_ms - first.at_ms >= 20_000


def test_a_canary_outlives_the_services_that_watch_it(place: Place, start: Callable[..., Router]) -> None:
    hands, routers = Hands(place), [start().wait_ready(), start().wait_ready()]
    held(hands, 300)
    with Witness(place.amqp_url, QUEUE, hangs=True) as witness:
        resumed(hands)
        wait_for(lambda: len(witness.seen) == 1, what="the canary to arrive")
        for router in routers:
            router.kill()
        routers = [start().wait_ready(), start().wait_ready()]
        assert "acknowledged 0 of 1" in problem(hands)
        said = [line for router in routers for line in router.said("a canary has not passed")]
        assert [(line["destination"], line["size"]) for line in said] == [(QUEUE, 1)]
        assert (len(witness.seen), in_hold(hands)) == (1, 299)
        witness.hangs = False
        over(hands)
        wait_for(lambda: len(witness.seen) == 300, what="all to arrive")


def test_a_canary_that_a_crash_kept_back_is_let_go(place: Place, start: Callable[..., Router]) -> None:
    """It was written down, and the service ended before it was let go."""
    hands, router = Hands(place), start().wait_ready()
    order = held(hands, 3)
    router.kill()
    resumed(hands)
    first, _ = place.wait_message(order)
    headers = first.headers or {}
    canary = json.dumps([{"id": headers["tarry-id"], "round": headers["tarry-round"], "queue": QUEUE}], default=str)
    with psycopg.connect(place.dsn) as books:
        books.execute("update hold set stage_ids = %s::jsonb, stage_since = clock_timestamp()", [canary])
    with Witness(place.amqp_url, QUEUE) as witness:
        start().wait_ready()
        over(hands)
    assert [one.message_id for one in witness.seen] == [first.message_id, *place.take(order, 2)]


def test_a_canary_of_an_exchange_waits_for_the_queue_it_failed_in(place: Place, start: Callable[..., Router]) -> None:
    place.write_policies(THROUGH_THE_EXCHANGE)
    place.apply()
    hands, label = Hands(place), "exchange:events"
    place.origin(QUEUE)
    place.channel.exchange_declare("events", "fanout", durable=True)
    place.channel.queue_bind(QUEUE, "events")
    place.channel.exchange_bind("events", "retry.deliver", Destination("exchange", "events").key)
    start().wait_ready()
    hands.do(lambda desk: pause(desk, label, actor="ann"))
    for number in range(5):
        place.request(QUEUE, f"m{number}", original_exchange="events")
    wait_for(lambda: place.depth(f"retry.held.{label}") == 5, what="them to be held")
    with Witness(place.amqp_url, QUEUE, hangs=True) as witness:
        hands.do(lambda desk: resume(desk, label, actor="ann", canary=True, look=LOOK))
        assert f"queue '{QUEUE}' acknowledged 0 of 1" in problem(hands)
        witness.hangs = False
        over(hands)
        wait_for(lambda: len(witness.seen) == 5, what="all to arrive")
