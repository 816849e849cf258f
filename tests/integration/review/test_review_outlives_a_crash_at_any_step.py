"""A job that is cut off between any two of its steps goes on, and each message arrives once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from tarry.broker.publisher import Message, Outcome
from tarry.control.desk import Desk
from tarry.control.review import doubt, jobs
from tarry.control.review.filters import Filter
from tarry.control.review.hand import Hand
from tarry.control.review.job import Job, Order
from tarry.control.review.sending import Redrive
from tarry.control.review.work import work
from tarry.errors import BrokerError, ConflictError
from tests.harness.proxy import Proxy
from tests.harness.waiting import wait_for
from tests.integration.review.reviewing import REVIEW, Person, in_review, number, send_to_review
from tests.integration.router.serving import Place, Router


class Killed(BaseException):
    """As sudden as a signal."""


@pytest.fixture(autouse=True)
def _judges_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubt, "SETTLE", timedelta(seconds=1))
    monkeypatch.setattr(doubt, "NEXT_LOOK", 0.3)


async def killed_before_it_was_sent(_desk: Desk, _messages: Sequence[Message]) -> list[Outcome]:
    raise Killed


_publish = Desk.publish


async def killed_after_it_was_sent(desk: Desk, messages: Sequence[Message]) -> list[Outcome]:
    await _publish(desk, messages)
    raise Killed


async def confirms_are_lost(desk: Desk, messages: Sequence[Message]) -> list[Outcome]:
    return [Outcome.UNKNOWN for _ in await _publish(desk, messages)]


def killed_before_the_acknowledgement(_hand: Hand, _held: object) -> None:
    raise Killed


async def killed_before_the_record(_redrive: Redrive, _ids: object) -> None:
    raise Killed


CUTS: dict[str, tuple[type, str, Any]] = {
    "marked": (Desk, "publish", killed_before_it_was_sent),
    "sent": (Desk, "publish", killed_after_it_was_sent),
    "confirmed": (Redrive, "_record", killed_before_the_record),
    "recorded": (Hand, "ack", killed_before_the_acknowledgement),
}


@pytest.mark.parametrize("step", CUTS)
def test_each_message_arrives_once(place: Place, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    orders = place.origin("orders")
    send_to_review(place, orders, [f"o{n}" for n in range(20)])
    person = Person(place)
    job = person.do(lambda desk: jobs.create(desk, Order("redrive", Filter(queue="orders")), actor="a", here=True))
    with monkeypatch.context() as cut:
        cut.setattr(*CUTS[step])
        with pytest.raises(Killed):
            person.do(lambda desk: work(desk, job.id, runner="one"))

    done = person.finish(job.id)

    assert (done.state, done.done, done.in_doubt) == ("done", 20, 0)
    assert sorted(place.take(orders, 20)) == sorted(f"o{n}" for n in range(20))
    assert place.get(orders) is None
    assert place.depth(REVIEW) == in_review(place) == 0
    wait_for(lambda: number(place, "select count(*) from retry where state = 'returned'") == 20, what="the tap's word")
    assert number(place, "select count(*) from transition where state = 'duplicate'") == 0


def test_when_the_confirms_are_lost_each_arrives_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = place.origin("orders")
    send_to_review(place, orders, ["a", "b", "c"])
    monkeypatch.setattr(Desk, "publish", confirms_are_lost)
    done = Person(place).redrive(Filter(queue="orders"))
    assert (done.state, done.done) == ("done", 3)
    assert sorted(place.take(orders, 3)) == ["a", "b", "c"]
    assert place.get(orders) is None
    assert place.depth(REVIEW) == 0


def test_without_the_taps_word_a_person_is_asked(
    own_place: Place, start: Callable[..., Router], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service is away, so nobody reads the tap: nothing is sent a second time on a guess."""
    place, router = own_place, start().wait_ready()
    orders = place.origin("orders")
    send_to_review(place, orders, ["a"])
    router.stop()
    monkeypatch.setattr(doubt, "PATIENCE", timedelta(seconds=2))
    person = Person(place)
    with monkeypatch.context() as cut:
        cut.setattr(Desk, "publish", confirms_are_lost)
        done = person.redrive(Filter(queue="orders"))
    assert (done.state, done.in_doubt, done.done) == ("done", 1, 0)
    assert place.take(orders, 1) == ["a"]
    assert place.depth(REVIEW) == 1
    start().wait_ready()
    wait_for(lambda: number(place, "select count(*) from retry where state = 'returned'") == 1, what="the tap's word")

    person.do(lambda desk: jobs.go_on(desk, done.id, actor="alice"))
    again = person.finish(done.id)

    assert (again.in_doubt, again.done) == (0, 1)
    assert place.get(orders) is None
    assert place.depth(REVIEW) == 0


def test_only_one_works_on_a_job_and_a_stop_is_heard(place: Place) -> None:
    orders = place.origin("orders")
    send_to_review(place, orders, [f"o{n}" for n in range(40)])

    async def act(desk: Desk) -> tuple[Job, Job]:
        job = await jobs.create(desk, Order("redrive", Filter(queue="orders"), rate=10), actor="alice", here=True)
        first = asyncio.create_task(work(desk, job.id, runner="one"))
        now = job
        while now.done < 3:
            now = await jobs.get(desk, job.id)
        assert now.state == "running"
        assert now.eta is not None
        with pytest.raises(ConflictError, match="one works on job"):
            await work(desk, job.id, runner="two")
        await jobs.stop(desk, job.id, actor="alice")
        stopped = await first
        await jobs.go_on(desk, job.id, actor="alice", here=True)
        return stopped, await work(desk, job.id, runner="two")

    began = time.monotonic()
    stopped, done = Person(place).do(act)
    assert time.monotonic() - began > 3.0, "faster than ten a second"
    assert stopped.state == "stopped"
    assert 3 <= stopped.done < 40
    assert (done.state, done.done) == ("done", 40)
    assert len(set(place.take(orders, 40))) == 40


def test_a_connection_that_is_cut_in_the_middle_loses_and_doubles_nothing(
    place: Place, proxy: Callable[[str], Proxy]
) -> None:
    orders = place.origin("orders")
    send_to_review(place, orders, [f"o{n}" for n in range(60)])
    person, wire = Person(place), proxy(place.amqp_url)
    order = Order("redrive", Filter(queue="orders"), rate=40)
    job = person.do(lambda desk: jobs.create(desk, order, actor="alice", here=True))

    async def cut_off(desk: Desk) -> None:
        working = asyncio.create_task(work(desk, job.id, runner="one"))
        now = job
        while now.done < 10:
            now = await jobs.get(desk, job.id)
        wire.cut()
        with pytest.raises(BrokerError):
            await working

    person.do(cut_off, through=wire)
    done = person.finish(job.id)
    assert (done.done, done.in_doubt, done.gone) == (60, 0, 0)
    assert sorted(place.take(orders, 60)) == sorted(f"o{n}" for n in range(60))
    assert place.get(orders) is None
    assert place.depth(REVIEW) == 0
