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

from tarry.operations.review import jobs
from tarry.operations.review.browse import Filter
from tarry.operations.review.jobs import JobSpec
from tests.acceptance.audited import AuditedInstallation
from tests.integration.operations.review.reviewing import REVIEW, Reviewer, in_review, send_to_review
from tests.support.installation import Installation
from tests.support.router import Router
from tests.support.waiting import wait_for

CROWD = int(os.environ.get("TARRY_REVIEW_CROWD", "1000"))
GROUP = CROWD // 5
RATE = max(50, CROWD / 50)
"""Messages a second: some seconds to stop and to kill the job in, and no more for the full size than ten."""
QUIET = 0.7
"""Seconds in which a second copy of a message would arrive, if there were one."""


class Taker:
    """Takes from a queue on a thread of its own, so many a second, and counts what it got."""

    def __init__(self, installation: Installation, queue: str, rate: float | None = None) -> None:
        self.seen: Counter[str] = Counter()
        self._installation, self._queue, self._rate = installation, queue, rate
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
        with pika.BlockingConnection(pika.URLParameters(self._installation.amqp_url)) as connection:
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
def test_none_is_lost_and_none_comes_twice(own_installation: Installation, start: Callable[..., Router]) -> None:
    installation, service = own_installation, start().wait_ready()
    orders, bills = installation.declare("orders"), installation.declare("bills")
    installation.connection.close()  # nobody answers its heartbeats from here on
    group = [f"o{n}" for n in range(GROUP)]
    # The group lies scattered among the others.
    for part in range(5):
        send_to_review(installation, orders, group[part::5], error_reason="no stock for 4711")
        send_to_review(installation, bills, [f"b{part}-{n}" for n in range((CROWD - GROUP) // 5)])
    reviewer = Reviewer(installation)
    began = time.monotonic()
    with Taker(installation, REVIEW, rate=min(200, CROWD / 50)) as other, Taker(installation, orders) as worker:
        wait_for(lambda: other.seen.total() > 5, what="the other consumer to take some")
        order = JobSpec("redrive", Filter(queue="orders", error_type="Broken"), rate=RATE)
        job = reviewer.do(lambda context: jobs.create(context, order, actor="alice"))
        wait_for(lambda: len(worker.seen) > GROUP // 10, deadline=60, what="a part of them to be back")
        reviewer.do(lambda context: jobs.stop(context, job.id, actor="alice"))
        wait_for(lambda: reviewer.do(lambda context: jobs.get(context, job.id)).state == "stopped")
        still = wait_for_quiet(worker)
        assert still < GROUP
        reviewer.do(lambda context: jobs.resume(context, job.id, actor="alice"))
        wait_for(lambda: len(worker.seen) > still + GROUP // 10, deadline=60, what="more of them to be back")
        service.kill()
        killed_at = len(worker.seen)
        start()
        wait_for(
            lambda: reviewer.do(lambda context: jobs.get(context, job.id)).state == "done",
            deadline=120 + CROWD / 50,
            what="the job to be done",
        )
        done = reviewer.do(lambda context: jobs.get(context, job.id))
        wait_for(lambda: len(worker.seen) >= done.done, deadline=60, what="all redriven messages to arrive")
        wait_for_quiet(worker)
    took = time.monotonic() - began
    sys.stdout.write(
        f"\n{CROWD} in review, {GROUP} chosen: {len(worker.seen)} redriven, {done.gone} gone to another, which "
        f"took {other.seen.total()}; {done.unconfirmed} unconfirmed, killed at {killed_at}, "
        f"{done.runs} runs, {took:.0f} s\n"
    )
    taken = {one for one in other.seen if one.startswith("o")}
    assert taken
    assert max(worker.seen.values()) == 1
    assert set(worker.seen) | taken == set(group)
    assert not set(worker.seen) & taken
    assert (done.failed, done.unconfirmed, done.left) == (0, 0, 0)
    assert done.done == len(worker.seen)
    installation = AuditedInstallation(
        installation.amqp_url, installation.management_url, installation.dsn, installation.folder
    )
    assert installation.depth(REVIEW) == CROWD - len(worker.seen) - other.seen.total()
    assert in_review(installation) == CROWD - done.done
    assert installation.number("select count(*) from transition where state = 'duplicate'") == 0
    wait_for(lambda: installation.verify() == (0, [], []), what="the audit to balance")


def wait_for_quiet(worker: Taker) -> int:
    """How many it has, once no more come."""
    end, last = time.monotonic() + QUIET, -1
    while time.monotonic() < end:
        if worker.seen.total() != last:
            last, end = worker.seen.total(), time.monotonic() + QUIET
        time.sleep(0.05)
    return last
