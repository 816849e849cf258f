"""A job that is cut off between any two of its steps goes on, and each message arrives once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from tarry.amqp.publisher import Message, PublishOutcome
from tarry.errors import BrokerError, ConflictError
from tarry.operations.context import OperatorContext
from tarry.operations.pause import pause, resume
from tarry.operations.review import jobs, unconfirmed
from tarry.operations.review.batch import Redrive
from tarry.operations.review.browse import Filter
from tarry.operations.review.jobs import Job, JobSpec
from tarry.operations.review.queue_scan import QueueScan
from tarry.operations.review.work import work
from tests.integration.operations.review.reviewing import REVIEW, Reviewer, in_review, send_to_review
from tests.support.installation import Installation
from tests.support.proxy import Proxy
from tests.support.router import Router
from tests.support.waiting import wait_for


class Killed(BaseException):
    """As sudden as a signal."""


@pytest.fixture(autouse=True)
def _judges_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unconfirmed, "SETTLE", timedelta(seconds=1))
    monkeypatch.setattr(unconfirmed, "NEXT_LOOK", 0.3)


async def killed_before_it_was_sent(_context: OperatorContext, _messages: Sequence[Message]) -> list[PublishOutcome]:
    raise Killed


_publish = OperatorContext.publish


async def killed_after_it_was_sent(context: OperatorContext, messages: Sequence[Message]) -> list[PublishOutcome]:
    await _publish(context, messages)
    raise Killed


async def confirms_are_lost(context: OperatorContext, messages: Sequence[Message]) -> list[PublishOutcome]:
    return [PublishOutcome.UNKNOWN for _ in await _publish(context, messages)]


def killed_before_the_acknowledgement(_hand: QueueScan, _held: object) -> None:
    raise Killed


async def killed_before_the_record(_redrive: Redrive, _ids: object) -> None:
    raise Killed


CUTS: dict[str, tuple[type, str, Any]] = {
    "marked": (OperatorContext, "publish", killed_before_it_was_sent),
    "sent": (OperatorContext, "publish", killed_after_it_was_sent),
    "confirmed": (Redrive, "_record", killed_before_the_record),
    "recorded": (QueueScan, "ack", killed_before_the_acknowledgement),
}


@pytest.mark.parametrize("step", CUTS)
def test_each_message_arrives_once(installation: Installation, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    orders = installation.declare("orders")
    send_to_review(installation, orders, [f"o{n}" for n in range(20)])
    reviewer = Reviewer(installation)
    job = reviewer.do(
        lambda context: jobs.create(context, JobSpec("redrive", Filter(queue="orders")), actor="a", here=True)
    )
    with monkeypatch.context() as cut:
        cut.setattr(*CUTS[step])
        with pytest.raises(Killed):
            reviewer.do(lambda context: work(context, job.id, runner="one"))

    done = reviewer.finish(job.id)

    assert (done.state, done.done, done.unconfirmed) == ("done", 20, 0)
    assert sorted(installation.take_ids(orders, 20)) == sorted(f"o{n}" for n in range(20))
    assert installation.get(orders) is None
    assert installation.depth(REVIEW) == in_review(installation) == 0
    wait_for(
        lambda: installation.number("select count(*) from retry where state = 'returned'") == 20, what="the tap's word"
    )
    assert installation.number("select count(*) from transition where state = 'duplicate'") == 0


def test_when_the_confirms_are_lost_each_arrives_once(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = installation.declare("orders")
    send_to_review(installation, orders, ["a", "b", "c"])
    monkeypatch.setattr(OperatorContext, "publish", confirms_are_lost)
    done = Reviewer(installation).redrive(Filter(queue="orders"))
    assert (done.state, done.done) == ("done", 3)
    assert sorted(installation.take_ids(orders, 3)) == ["a", "b", "c"]
    assert installation.get(orders) is None
    assert installation.depth(REVIEW) == 0


def test_without_the_taps_word_a_person_is_asked(
    own_installation: Installation, start: Callable[..., Router], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service is away, so nobody reads the tap: nothing is sent a second time on a guess."""
    installation, router = own_installation, start().wait_ready()
    orders = installation.declare("orders")
    send_to_review(installation, orders, ["a"])
    router.stop()
    monkeypatch.setattr(unconfirmed, "PATIENCE", timedelta(seconds=2))
    reviewer = Reviewer(installation)
    with monkeypatch.context() as cut:
        cut.setattr(OperatorContext, "publish", confirms_are_lost)
        done = reviewer.redrive(Filter(queue="orders"))
    assert (done.state, done.unconfirmed, done.done) == ("done", 1, 0)
    assert installation.take_ids(orders, 1) == ["a"]
    assert installation.depth(REVIEW) == 1
    start().wait_ready()
    wait_for(
        lambda: installation.number("select count(*) from retry where state = 'returned'") == 1, what="the tap's word"
    )

    reviewer.do(lambda context: jobs.resume(context, done.id, actor="alice"))
    again = reviewer.finish(done.id)

    assert (again.unconfirmed, again.done) == (0, 1)
    assert installation.get(orders) is None
    assert installation.depth(REVIEW) == 0


def test_what_a_pause_by_job_type_holds_is_not_sent_a_second_time(
    own_installation: Installation, start: Callable[..., Router], monkeypatch: pytest.MonkeyPatch
) -> None:
    installation, held = own_installation, "retry.held~type:pdf"
    start().wait_ready()
    orders = installation.declare("orders")
    send_to_review(installation, orders, ["a"], job_type="pdf")
    monkeypatch.setattr(unconfirmed, "PATIENCE", timedelta(seconds=4))
    reviewer = Reviewer(installation)
    reviewer.do(lambda context: pause(context, "pdf", scope="job-type", actor="alice"))
    first = iter([confirms_are_lost])

    async def first_confirm_is_lost(context: OperatorContext, messages: Sequence[Message]) -> list[PublishOutcome]:
        return await next(first, _publish)(context, messages)

    monkeypatch.setattr(OperatorContext, "publish", first_confirm_is_lost)
    done = reviewer.redrive(Filter(queue="orders"))
    assert (done.state, done.unconfirmed, done.done, installation.depth(held)) == ("done", 1, 0, 1)
    reviewer.do(lambda context: resume(context, "pdf", scope="job-type", actor="alice"))
    assert installation.take_ids(orders, 1) == ["a"]
    wait_for(
        lambda: installation.number("select count(*) from retry where state = 'returned'") == 1, what="the tap's word"
    )

    reviewer.do(lambda context: jobs.resume(context, done.id, actor="alice"))
    again = reviewer.finish(done.id)

    assert (again.unconfirmed, again.done, installation.depth(REVIEW)) == (0, 1, 0)
    assert installation.get(orders) is None


def test_only_one_works_on_a_job_and_a_stop_is_heard(installation: Installation) -> None:
    orders = installation.declare("orders")
    send_to_review(installation, orders, [f"o{n}" for n in range(40)])

    async def act(context: OperatorContext) -> tuple[Job, Job]:
        job = await jobs.create(context, JobSpec("redrive", Filter(queue="orders"), rate=20), actor="alice", here=True)
        first = asyncio.create_task(work(context, job.id, runner="one"))
        now = job
        while now.done < 3:
            now = await jobs.get(context, job.id)
        assert now.state == "running"
        assert now.eta is not None
        with pytest.raises(ConflictError, match="one is running job"):
            await work(context, job.id, runner="two")
        await jobs.stop(context, job.id, actor="alice")
        stopped = await first
        await jobs.resume(context, job.id, actor="alice", here=True)
        return stopped, await work(context, job.id, runner="two")

    began = time.monotonic()
    stopped, done = Reviewer(installation).do(act)
    assert time.monotonic() - began > 1.5, "faster than twenty a second"
    assert stopped.state == "stopped"
    assert 3 <= stopped.done < 40
    assert (done.state, done.done) == ("done", 40)
    assert len(set(installation.take_ids(orders, 40))) == 40


def test_a_connection_that_is_cut_in_the_middle_loses_and_doubles_nothing(
    installation: Installation, proxy: Callable[[str], Proxy]
) -> None:
    orders = installation.declare("orders")
    send_to_review(installation, orders, [f"o{n}" for n in range(60)])
    reviewer, wire = Reviewer(installation), proxy(installation.amqp_url)
    order = JobSpec("redrive", Filter(queue="orders"), rate=40)
    job = reviewer.do(lambda context: jobs.create(context, order, actor="alice", here=True))

    async def cut_off(context: OperatorContext) -> None:
        working = asyncio.create_task(work(context, job.id, runner="one"))
        now = job
        while now.done < 10:
            now = await jobs.get(context, job.id)
        wire.cut()
        with pytest.raises(BrokerError):
            await working

    reviewer.do(cut_off, through=wire)
    done = reviewer.finish(job.id)
    assert (done.done, done.unconfirmed, done.gone) == (60, 0, 0)
    assert sorted(installation.take_ids(orders, 60)) == sorted(f"o{n}" for n in range(60))
    assert installation.get(orders) is None
    assert installation.depth(REVIEW) == 0
