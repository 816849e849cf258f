"""Processes one batch of a job's messages: `Redrive` and `Discard`.

A redrive marks the batch in the store, publishes it, waits for the broker's confirms, records them, and only then lets
the messages be acknowledged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tarry.amqp.publisher import PublishOutcome
from tarry.core.names import Destination
from tarry.errors import TarryError
from tarry.operations.context import OperatorContext
from tarry.operations.review.jobs import Job
from tarry.operations.review.message import ReviewHeaders
from tarry.operations.review.queue_scan import ScannedMessage
from tarry.operations.review.redrive import CannotRedriveError, RedriveContext, Redriven, RedriveOptions, redrive
from tarry.router.destinations import Destinations
from tarry.store.columns import LEG, columns

Found = tuple[ScannedMessage, ReviewHeaders]


@dataclass(slots=True)
class JobBatchResult:
    """What to do with the messages of a batch in the review queue."""

    gone: list[ScannedMessage] = field(default_factory=list)
    """To be acknowledged."""
    back: list[ScannedMessage] = field(default_factory=list)


class Handler(Protocol):
    """Applies a job to a batch of its messages."""

    async def __call__(self, batch: Sequence[Found]) -> JobBatchResult: ...


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Redrive:
    """Redrives the messages of a batch."""

    context: OperatorContext
    job: Job
    options: RedriveOptions
    redrive_context: RedriveContext
    destinations: Destinations
    now_ms: Callable[[], int] = _now_ms

    async def __call__(self, batch: Sequence[Found]) -> JobBatchResult:
        ready, refused = await self._build(batch)
        marked = await self._mark(ready)
        ours = [one for one in ready if one[1].key[0] in marked]
        outcomes = await self._publish(ours)
        answered = list(zip(ours, outcomes, strict=True))
        confirmed = [found for found, outcome in answered if outcome is PublishOutcome.CONFIRMED]
        await self._record([resent for _, resent in confirmed])
        refused += [(found, _refusal(outcome)) for (found, _), outcome in answered if outcome in _REFUSALS]
        await self._give_back(refused)
        gone = [found[0] for found, _ in confirmed]
        return JobBatchResult(gone, [held for held, _ in batch if held not in gone])

    async def _build(self, batch: Sequence[Found]) -> tuple[list[tuple[Found, Redriven]], list[tuple[Found, str]]]:
        ready: list[tuple[Found, Redriven]] = []
        refused: list[tuple[Found, str]] = []
        for found in batch:
            try:
                resent = redrive(found[0].delivery, found[1], self.options, self.redrive_context, self.now_ms())
            except CannotRedriveError as problem:
                refused.append((found, str(problem)))
                continue
            reason = await self._unreachable(resent.destination)
            if reason is None:
                ready.append((found, resent))
            else:
                refused.append((found, reason))
        return ready, refused

    async def _unreachable(self, destination: Destination) -> str | None:
        reason = await self.destinations.ensure_bound(destination)
        return None if reason is None else reason.replace("the origin queue", "the queue")

    async def _mark(self, ready: Sequence[tuple[Found, Redriven]]) -> set[str]:
        """Returns the retry ids that the store has marked for this job; only these may be published."""
        if not ready:
            return set()
        if self.options.edits:
            await self._keep_originals(ready)
        resent = [one for _, one in ready]
        rows = await self.context.store.rows(
            "review_sending",
            job=self.job.id,
            actor=self.job.actor,
            reset_attempts=self.options.reset_attempts,
            why="redriven from review" + (f" to {self.options.to}" if self.options.to else ""),
            about=json.dumps({"edited": self.options.edits.summary()} if self.options.edits else {}),
            ids=[one.key[0] for one in resent],
            rounds=[one.key[1] for one in resent],
            queues=[one.queue for one in resent],
            counts=[one.retry_count for one in resent],
            tiers=[one.tier for one in resent],
            delay_ms=[one.delay_ms for one in resent],
            due_ms=[one.due_ms for one in resent],
            bodies=[one.body for one in resent],
            properties=[one.stored_properties() for one in resent],
        )
        return {row[0] for row in rows}

    async def _keep_originals(self, ready: Sequence[tuple[Found, Redriven]]) -> None:
        await self.context.store.rows(
            "review_keep_originals",
            job=self.job.id,
            actor=self.job.actor,
            changes=json.dumps(self.options.edits.summary()),
            ids=[resent.key[0] for _, resent in ready],
            rounds=[resent.key[1] for _, resent in ready],
            bodies=[held.delivery.body for (held, _), _ in ready],
            properties=[b"".join(held.delivery.properties.encode()) for (held, _), _ in ready],
        )

    async def _publish(self, ours: Sequence[tuple[Found, Redriven]]) -> list[PublishOutcome]:
        """An exception means that nothing was published. If the connection is lost during the publish, the outcome is
        UNKNOWN: the message may or may not have arrived.
        """
        if not ours:
            return []
        try:
            return await self.context.publish([resent.message for _, resent in ours])
        except (TarryError, OSError):
            await self._give_back([(found, None) for found, _ in ours])
            raise

    async def _record(self, confirmed: Sequence[Redriven]) -> None:
        if confirmed:
            await self.context.store.rows("review_sent", job=self.job.id, ids=[one.key[0] for one in confirmed])
        if legs := [one.leg for one in confirmed if one.leg is not None]:
            await self.context.store.rows("record_legs", **columns(legs, LEG), actor=self.job.actor)

    async def _give_back(self, refused: Sequence[tuple[Found, str | None]]) -> None:
        await give_back(self.context, self.job, [(headers, problem) for (_, headers), problem in refused])


async def give_back(context: OperatorContext, job: Job, unsent: Sequence[tuple[ReviewHeaders, str | None]]) -> None:
    """Returns messages that were not sent to review. One with a problem has failed, and the job does not retry it."""
    known = [(headers.key[0], headers, problem) for headers, problem in unsent if headers.key is not None]
    if known:
        await context.store.rows(
            "review_unsent",
            job=job.id,
            actor=job.actor,
            ids=[retry_id for retry_id, _, _ in known],
            problems=[problem for _, _, problem in known],
            queues=[headers.queue for _, headers, _ in known],
            counts=[headers.retry_count for _, headers, _ in known],
        )


@dataclass(slots=True)
class Discard:
    """Discards the messages of a batch."""

    context: OperatorContext
    job: Job

    async def __call__(self, batch: Sequence[Found]) -> JobBatchResult:
        keys = [headers.key for _, headers in batch if headers.key is not None]
        rows = await self.context.store.rows(
            "review_discarding",
            job=self.job.id,
            actor=self.job.actor,
            why=self.job.reason,
            ids=[retry_id for retry_id, _ in keys],
            rounds=[round_ for _, round_ in keys],
        )
        done = {row[0] for row in rows}
        gone = [held for held, headers in batch if headers.key is not None and headers.key[0] in done]
        return JobBatchResult(gone, [held for held, _ in batch if held not in gone])


_REFUSALS = (PublishOutcome.RETURNED, PublishOutcome.NACKED)


def _refusal(outcome: PublishOutcome) -> str:
    if outcome is PublishOutcome.RETURNED:
        return "the broker has no route for it: run `tarry topology apply`"
    return "the broker refused it: a queue on its path is full or has no quorum"
