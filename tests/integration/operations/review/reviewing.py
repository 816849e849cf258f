"""Messages in the review queue, and an operator who decides about them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tarry.amqp.field_tables import table
from tarry.amqp.properties import Properties
from tarry.amqp.publisher import Message, Publisher, PublishOutcome
from tarry.operations.context import OperatorContext
from tarry.operations.review.browse import Filter
from tarry.operations.review.jobs import Job, JobSpec, create
from tarry.operations.review.redrive import RedriveOptions
from tarry.operations.review.work import work, work_or_wait
from tests.integration.operations.operators import Operator
from tests.support.installation import Installation
from tests.support.waiting import wait_for

REVIEW = "manual-review.pending"


@dataclass
class Reviewer(Operator):
    """An operator who decides about messages in review."""

    name: str = "alice"

    def redrive(self, chosen: Filter, rate: float | None = None, **options: Any) -> Job:
        """Creates the job and works on it until it is done."""
        return self._run(JobSpec("redrive", chosen, RedriveOptions(**options), rate))

    def finish(self, job_id: str) -> Job:
        """Resumes a job until it is done, or waits if the service works on it."""
        return self.do(lambda context: work_or_wait(context, job_id, runner=self.name, stop=asyncio.Event()))

    def discard(self, chosen: Filter, reason: str) -> Job:
        return self._run(JobSpec("discard", chosen, reason=reason))

    def _run(self, spec: JobSpec) -> Job:
        async def run(context: OperatorContext) -> Job:
            job = await create(context, spec, actor=self.name, here=True)
            return await work(context, job.id, runner=self.name)

        return self.do(run)


def send_to_review(
    installation: Installation, queue: str, ids: Sequence[str], *, body: bytes = b"payload", **headers: Any
) -> None:
    """Publishes requests whose error is final; returns when the store has all of them in review."""

    def reviewed() -> int:
        """Counts only these ids: other messages of a shared installation may leave review meanwhile."""
        sql = "select count(*) from retry where state = 'in_review' and message_id = any(%s)"
        return installation.number(sql, list(ids))

    before = reviewed()
    asyncio.run(_publish(installation, [_request(queue, one, body, headers) for one in ids]))
    wanted = before + len(ids)
    wait_for(lambda: reviewed() >= wanted, deadline=120 + len(ids) / 300, what=f"{len(ids)} more in review")


def _request(queue: str, message_id: str, body: bytes, headers: dict[str, Any]) -> Message:
    given = {"original_queue": queue, "error_class": "final", "error_type": "Broken", **headers}
    about = Properties(headers=table(given), delivery_mode=2, message_id=message_id.encode())
    return Message("", "retry.scheduled", about, body, message_id)


async def _publish(installation: Installation, messages: Sequence[Message]) -> None:
    publisher = await Publisher.open(installation.address, "producer")
    for start in range(0, len(messages), 1_000):
        outcomes = await publisher.publish(messages[start : start + 1_000])
        assert set(outcomes) == {PublishOutcome.CONFIRMED}
    await publisher.link.close()


def put_in_review(installation: Installation, messages: Iterable[tuple[Properties, bytes]]) -> None:
    """Publishes straight to the review queue, so the store has no record of the messages."""
    asyncio.run(_publish(installation, [Message("", REVIEW, about, body, "direct") for about, body in messages]))


def in_review(installation: Installation) -> int:
    return installation.number("select count(*) from retry where state = 'in_review'")


def history(installation: Installation, message_id: str) -> list[str]:
    rows = installation.rows(
        "select transition.state from transition join retry on retry.id = retry_id where message_id = %s"
        " order by transition.id",
        message_id,
    )
    return [row[0] for row in rows]


def row_of(installation: Installation, message_id: str, *columns: str) -> tuple[Any, ...]:
    sql = f"select {', '.join(columns)} from retry where message_id = %s"  # noqa: S608 - our own names
    rows = installation.rows(sql, message_id)
    assert rows
    return rows[0]
