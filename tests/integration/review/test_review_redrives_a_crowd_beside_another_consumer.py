"""A large group out of a larger queue, while somebody else takes from it too, through a stop and a kill.

None is lost, and none comes twice. TARRY_REVIEW_CROWD=50000 is the full size.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

import pika
import pytest

from tarry.control.review import jobs
from tarry.control.review.filters import Filter
from tarry.control.review.job import Order
from tests.acceptance.audit_world import World
from tests.harness.waiting import wait_for
from tests.integration.review.reviewing import REVIEW, Person, in_review, number, send_to_review
from tests.integration.router.serving import Place, Router

CROWD = int(os.environ.get("TARRY_REVIEW_CROWD", "2000"))
GROUP = CROWD // 5


class Taker:
    """Takes from a queue on a thread of its own, so many a second, and counts what it got."""

    def __init__(self, place: Place, queue: str, rate: float | None = None) -> None:
        self.seen: Counter[str] = Counter()
        self._place, self._queue, self._rate = place, queue, rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        with pika.BlockingConnection(pika.URLParameters(self._place.amqp_url)) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=20 if self._rate else 500)
            for method, properties, _ in channel.consume(self._queue, inactivity_timeout=0.1):
                if self._stop.is_set():
                    return
                if method is None or properties is None:
                    continue
                self.seen[str(properties.message_id)] += 1
                channel.basic_ack(method.delivery_tag or 0)
                if self._rate:
                    self._stop.wait(1 / self._rate)


@pytest.mark.timeout(300 + CROWD // 25)
def test_none_is_lost_and_none_comes_twice(own_place: Place, start: Callable[..., Router]) -> None:
    place, service = own_place, start().wait_ready()
    orders, bills = place.origin("orders"), place.origin("bills")
    place.connection.close()  # nobody answers its heartbeats from here on
    group = [f"o{n}" for n in range(GROUP)]
    # The group lies scattered among the others.
    for part in range(5):
        send_to_review(place, orders, group[part::5], error_reason="no stock for 4711")
        send_to_review(place, bills, [f"b{part}-{n}" for n in range((CROWD - GROUP) // 5)])
    person = Person(place)
    began = time.monotonic()
    with Taker(place, REVIEW, rate=min(200, CROWD / 50)) as other, Taker(place, orders) as worker:
        wait_for(lambda: other.seen.total() > 5, what="the other consumer to take some")
        order = Order("redrive", Filter(queue="orders", error_type="Broken"), rate=CROWD / 50)
        job = person.do(lambda desk: jobs.create(desk, order, actor="alice"))
        wait_for(lambda: len(worker.seen) > GROUP // 10, deadline=60, what="a part of them to be back")
        person.do(lambda desk: jobs.stop(desk, job.id, actor="alice"))
        wait_for(lambda: person.do(lambda desk: jobs.get(desk, job.id)).state == "stopped")
        still = wait_for_quiet(worker)
        assert still < GROUP
        person.do(lambda desk: jobs.go_on(desk, job.id, actor="alice"))
        wait_for(lambda: len(worker.seen) > still + GROUP // 10, deadline=60, what="more of them to be back")
        service.kill()
        killed_at = len(worker.seen)
        start()
        wait_for(
            lambda: person.do(lambda desk: jobs.get(desk, job.id)).state == "done",
            deadline=120 + CROWD / 50,
            what="the job to be done",
        )
        wait_for_quiet(worker)
    done = person.do(lambda desk: jobs.get(desk, job.id))
    took = time.monotonic() - began
    sys.stdout.write(
        f"\n{CROWD} in review, {GROUP} chosen: {len(worker.seen)} sent on, {done.gone} gone to another consumer, which "
        f"took {other.seen.total()}; {done.in_doubt} in doubt, killed at {killed_at}, {done.runs} runs, {took:.0f} s\n"
    )
    taken = {one for one in other.seen if one.startswith("o")}
    assert taken
    assert max(worker.seen.values()) == 1
    assert set(worker.seen) | taken == set(group)
    assert not set(worker.seen) & taken
    assert (done.failed, done.in_doubt, done.left) == (0, 0, 0)
    assert done.done == len(worker.seen)
    world = World(place.amqp_url, place.management_url, place.dsn, place.folder)
    assert world.depth(REVIEW) == CROWD - len(worker.seen) - other.seen.total()
    assert in_review(place) == CROWD - done.done
    assert number(place, "select count(*) from transition where state = 'duplicate'") == 0
    wait_for(lambda: world.verify() == (0, [], []), what="the books to balance")


def wait_for_quiet(worker: Taker) -> int:
    """How many it has, once no more come."""
    end, last = time.monotonic() + 2.0, -1
    while time.monotonic() < end:
        if len(worker.seen) != last:
            last, end = len(worker.seen), time.monotonic() + 2.0
        time.sleep(0.05)
    return last
