"""One batch of a job: mark it in the books, send it, wait for the broker's word, record it, and only then let it go."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tarry.broker.publisher import Outcome
from tarry.control.desk import Desk
from tarry.control.review.card import Card
from tarry.control.review.hand import Held
from tarry.control.review.job import Job
from tarry.control.review.resend import CannotResendError, House, Manner, Resent, resend
from tarry.core.names import Destination
from tarry.errors import TarryError
from tarry.router.destinations import Destinations

Found = tuple[Held, Card]


@dataclass(slots=True)
class Settled:
    """What becomes of a batch in the queue."""

    gone: list[Held] = field(default_factory=list)
    """To be acknowledged."""
    back: list[Held] = field(default_factory=list)


class Handler(Protocol):
    """What a job does to each of its messages."""

    async def __call__(self, batch: Sequence[Found]) -> Settled: ...


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Redrive:
    """Sends them on."""

    desk: Desk
    job: Job
    manner: Manner
    house: House
    destinations: Destinations
    now_ms: Callable[[], int] = _now_ms

    async def __call__(self, batch: Sequence[Found]) -> Settled:
        ready, refused = await self._build(batch)
        marked = await self._mark(ready)
        ours = [one for one in ready if one[1].key[0] in marked]
        outcomes = await self._publish(ours)
        answered = list(zip(ours, outcomes, strict=True))
        confirmed = [found for found, outcome in answered if outcome is Outcome.CONFIRMED]
        await self._record([resent.key[0] for _, resent in confirmed])
        refused += [(found, _said(outcome)) for (found, _), outcome in answered if outcome in _REFUSALS]
        await self._give_back(refused)
        gone = [found[0] for found, _ in confirmed]
        return Settled(gone, [held for held, _ in batch if held not in gone])

    async def _build(self, batch: Sequence[Found]) -> tuple[list[tuple[Found, Resent]], list[tuple[Found, str]]]:
        ready: list[tuple[Found, Resent]] = []
        refused: list[tuple[Found, str]] = []
        for found in batch:
            try:
                resent = resend(found[0].delivery, found[1], self.manner, self.house, self.now_ms())
            except CannotResendError as problem:
                refused.append((found, str(problem)))
                continue
            reason = await self._unreachable(resent.destination)
            if reason is None:
                ready.append((found, resent))
            else:
                refused.append((found, reason))
        return ready, refused

    async def _unreachable(self, destination: Destination) -> str | None:
        reason = await self.destinations(destination)
        return None if reason is None else reason.replace("the origin queue", "the queue")

    async def _mark(self, ready: Sequence[tuple[Found, Resent]]) -> set[str]:
        """Those that are ours to send."""
        if not ready:
            return set()
        if self.manner.edits:
            await self._keep_originals(ready)
        resent = [one for _, one in ready]
        rows = await self.desk.books.rows(
            "review_sending",
            job=self.job.id,
            actor=self.job.actor,
            fresh=self.manner.fresh,
            why="sent on from review" + (f" to {self.manner.to}" if self.manner.to else ""),
            about=json.dumps({"edited": self.manner.edits.summary()} if self.manner.edits else {}),
            ids=[one.key[0] for one in resent],
            rounds=[one.key[1] for one in resent],
            queues=[one.queue for one in resent],
            counts=[one.retry_count for one in resent],
            tiers=[one.tier for one in resent],
            delay_ms=[one.delay_ms for one in resent],
            due_ms=[one.due_ms for one in resent],
            bodies=[one.body for one in resent],
            properties=[one.message.encoded_properties() for one in resent],
        )
        return {row[0] for row in rows}

    async def _keep_originals(self, ready: Sequence[tuple[Found, Resent]]) -> None:
        await self.desk.books.rows(
            "review_keep_originals",
            job=self.job.id,
            actor=self.job.actor,
            changes=json.dumps(self.manner.edits.summary()),
            ids=[resent.key[0] for _, resent in ready],
            rounds=[resent.key[1] for _, resent in ready],
            bodies=[held.delivery.body for (held, _), _ in ready],
            properties=[b"".join(held.delivery.properties.encode()) for (held, _), _ in ready],
        )

    async def _publish(self, ours: Sequence[tuple[Found, Resent]]) -> list[Outcome]:
        """An error here means that nothing was sent; a connection that is lost on the way means that nobody knows."""
        if not ours:
            return []
        try:
            return await self.desk.publish([resent.message for _, resent in ours])
        except (TarryError, OSError):
            await self._give_back([(found, None) for found, _ in ours])
            raise

    async def _record(self, ids: Sequence[str]) -> None:
        if ids:
            await self.desk.books.rows("review_sent", job=self.job.id, ids=list(ids))

    async def _give_back(self, refused: Sequence[tuple[Found, str | None]]) -> None:
        await give_back(self.desk, self.job, [(card, problem) for (_, card), problem in refused])


async def give_back(desk: Desk, job: Job, unsent: Sequence[tuple[Card, str | None]]) -> None:
    """In review as before; with a problem it is not tried again."""
    known = [(card.key[0], card, problem) for card, problem in unsent if card.key is not None]
    if known:
        await desk.books.rows(
            "review_unsent",
            job=job.id,
            actor=job.actor,
            ids=[retry_id for retry_id, _, _ in known],
            problems=[problem for _, _, problem in known],
            queues=[card.queue for _, card, _ in known],
            counts=[card.retry_count for _, card, _ in known],
        )


@dataclass(slots=True)
class Discard:
    """Throws them away."""

    desk: Desk
    job: Job

    async def __call__(self, batch: Sequence[Found]) -> Settled:
        keys = [card.key for _, card in batch if card.key is not None]
        rows = await self.desk.books.rows(
            "review_discarding",
            job=self.job.id,
            actor=self.job.actor,
            why=self.job.reason,
            ids=[retry_id for retry_id, _ in keys],
            rounds=[round_ for _, round_ in keys],
        )
        done = {row[0] for row in rows}
        gone = [held for held, card in batch if card.key is not None and card.key[0] in done]
        return Settled(gone, [held for held, _ in batch if held not in gone])


_REFUSALS = (Outcome.RETURNED, Outcome.NACKED)


def _said(outcome: Outcome) -> str:
    if outcome is Outcome.RETURNED:
        return "the broker has no way for it: run `tarry topology apply`"
    return "the broker refused it: a queue on its way is full or without its quorum"
