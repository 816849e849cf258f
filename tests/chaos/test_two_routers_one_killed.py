"""Two routers share the work; one is killed with -9 in the middle of a batch, ten times over."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Self

import pika
import pytest

from tests.harness.waiting import wait_for
from tests.integration.router.conftest import place, start
from tests.integration.router.serving import Place, Router

__all__ = ["place", "start"]

KILLS = 10
PACE = 0.004
"""Seconds between two requests: enough for batches, few enough to count them all afterwards."""
BATCH = 20
IN_FLIGHT = 3
"""Batches that a router has in flight: what a kill can at most make it do twice."""


class Load:
    """Requests all the time, so that whoever is killed is killed at work."""

    def __init__(self, place: Place, queue: str) -> None:
        self.sent = 0
        self._url, self._queue = place.amqp_url, queue
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(self._url))
        channel = connection.channel()
        channel.confirm_delivery()
        while not self._stop.wait(PACE):
            about = pika.BasicProperties(
                delivery_mode=2, message_id=f"m{self.sent}", headers={"original_queue": self._queue}
            )
            channel.basic_publish("", "retry.scheduled", b"payload", about, mandatory=True)
            self.sent += 1
        connection.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def kill_at_work(victim: Router) -> None:
    before = victim.metric("retries_scheduled_total")
    wait_for(lambda: victim.metric("retries_scheduled_total") > before + BATCH, what="the victim to be at work")
    victim.kill()


@pytest.mark.timeout(170)
def test_every_message_returns_and_few_return_twice(place: Place, start: Callable[..., Router]) -> None:
    queue = place.origin("quick.orders")
    survivor = start(TARRY_BATCH=str(BATCH)).wait_ready()
    with Load(place, queue) as load:
        for _ in range(KILLS):
            kill_at_work(start(TARRY_BATCH=str(BATCH)).wait_ready())
    wait_for(lambda: place.depth("retry.scheduled") == 0, deadline=30, what="all requests to be taken")
    returned = Counter(place.take(queue, load.sent, deadline=60))
    wait_for(lambda: survivor.metric("retry_queue_depth") == 0, deadline=40, what="the tiers to be empty")
    returned.update(place.take(queue, 0))
    assert set(returned) == {f"m{number}" for number in range(load.sent)}
    twice = returned.total() - load.sent
    assert twice <= KILLS * IN_FLIGHT * BATCH
    assert load.sent > KILLS * BATCH
