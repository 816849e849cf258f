"""A review queue with something in it, and a person who decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import psycopg

from tarry.broker.publisher import Message, Outcome, Publisher
from tarry.contract.encoding import table
from tarry.contract.properties import Properties
from tarry.control.desk import Desk
from tarry.control.review.filters import Filter
from tarry.control.review.job import Job, Order
from tarry.control.review.jobs import create
from tarry.control.review.resend import Manner
from tarry.control.review.work import work, work_or_wait
from tarry.topology.load import load
from tests.harness.proxy import Proxy
from tests.harness.waiting import wait_for
from tests.integration.router.serving import Place

T = TypeVar("T")
REVIEW = "manual-review.pending"


@dataclass
class Person:
    """Acts on a desk of its own each time, as the command line does."""

    place: Place
    name: str = "alice"

    def do(self, act: Callable[[Desk], Coroutine[Any, Any, T]], *, through: Proxy | None = None) -> T:
        async def on_a_desk() -> T:
            place = self.place
            address = replace(place.address, port=through.port) if through else place.address
            async with Desk.open(load(place.folder), address, place.dsn, actor=self.name) as desk:
                return await act(desk)

        return asyncio.run(on_a_desk())

    def redrive(self, chosen: Filter, rate: float | None = None, **manner: Any) -> Job:
        """Made and worked off."""
        return self._run(Order("redrive", chosen, Manner(**manner), rate))

    def finish(self, job_id: str) -> Job:
        """Goes on with a job until it is done, unless the service is faster."""
        return self.do(lambda desk: work_or_wait(desk, job_id, runner=self.name, stop=asyncio.Event()))

    def discard(self, chosen: Filter, reason: str) -> Job:
        return self._run(Order("discard", chosen, reason=reason))

    def _run(self, order: Order) -> Job:
        async def run(desk: Desk) -> Job:
            job = await create(desk, order, actor=self.name, here=True)
            return await work(desk, job.id, runner=self.name)

        return self.do(run)


def send_to_review(place: Place, queue: str, ids: Sequence[str], *, body: bytes = b"payload", **headers: Any) -> None:
    """Requests that say of themselves that they are final; returns when all are in review, by the books too."""
    before = in_review(place)
    asyncio.run(_publish(place, [_request(queue, one, body, headers) for one in ids]))
    wait_for(
        lambda: in_review(place) >= before + len(ids), deadline=30 + len(ids) / 300, what=f"{len(ids)} more in review"
    )


def _request(queue: str, message_id: str, body: bytes, headers: dict[str, Any]) -> Message:
    said = {"original_queue": queue, "error_class": "final", "error_type": "Broken", **headers}
    about = Properties(headers=table(said), delivery_mode=2, message_id=message_id.encode())
    return Message("", "retry.scheduled", about, body, message_id)


async def _publish(place: Place, messages: Sequence[Message]) -> None:
    publisher = await Publisher.open(place.address, "producer")
    for start in range(0, len(messages), 1_000):
        outcomes = await publisher.publish(messages[start : start + 1_000])
        assert set(outcomes) == {Outcome.CONFIRMED}
    await publisher.link.close()


def put_by_hand(place: Place, messages: Iterable[tuple[Properties, bytes]]) -> None:
    """Straight into the review queue, past all books."""
    asyncio.run(_publish(place, [Message("", REVIEW, about, body, "by hand") for about, body in messages]))


def in_review(place: Place) -> int:
    return number(place, "select count(*) from retry where state = 'in_review'")


def number(place: Place, question: str) -> int:
    with psycopg.connect(place.dsn) as connection:
        row = connection.execute(question.encode()).fetchone()
    assert row is not None
    return int(row[0])


def history(place: Place, message_id: str) -> list[str]:
    with psycopg.connect(place.dsn) as connection:
        rows = connection.execute(
            "select transition.state from transition join retry on retry.id = retry_id where message_id = %s"
            " order by transition.id",
            [message_id],
        )
        return [row[0] for row in rows]


def row_of(place: Place, message_id: str, *columns: str) -> tuple[Any, ...]:
    with psycopg.connect(place.dsn) as connection:
        row = connection.execute(
            f"select {', '.join(columns)} from retry where message_id = %s".encode(),  # noqa: S608 - our own names
            [message_id],
        ).fetchone()
    assert row is not None
    return row
