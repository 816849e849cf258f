"""One stage of a release: a canary is let go, and watched until it passes or fails by the rules in `canary`.

What the next process needs to continue is in the hold's row: who the canary is, and what its queues said before.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from tarry.audit.upkeep import BACKLOG
from tarry.broker.management import STATISTICS
from tarry.contract import headers as h
from tarry.contract.fields import BadTableError, walk
from tarry.contract.reading import HeaderReader, RefusalError
from tarry.contract.request import Delivery
from tarry.control.canary import Progress, has_failed, is_reported
from tarry.control.canary_queues import CanaryQueues
from tarry.control.desk import Desk
from tarry.control.hold import Hold
from tarry.control.intake import read_intake
from tarry.control.outflow import Outflow
from tarry.errors import BrokerUnreachableError

log = structlog.get_logger()

Member = dict[str, str | int]
"""A message of the canary: `id`, `round`, and the `queue` it failed in."""

LOOK_EVERY = 0.5
READ_EVERY = 2.0
"""Seconds between two questions to the broker about the queues of a canary."""

UNSEEN = 30.0
"""Seconds without a sign of the canary, after which the held queue is searched for it."""


@dataclass(slots=True)
class CanaryStage:
    """One process has it at a time."""

    desk: Desk
    hold: Hold
    queues: CanaryQueues
    goes_on: Callable[[], Awaitable[bool]]
    """Whether the release is still wanted."""
    members: list[Member] = field(default_factory=list)
    _returned_at: float | None = None
    _searched_at: float = float("-inf")
    _told: bool = False

    @classmethod
    def of(cls, desk: Desk, hold: Hold, goes_on: Callable[[], Awaitable[bool]]) -> CanaryStage:
        """With the canary that another process has let go, if there is one."""
        return cls(desk, hold, CanaryQueues.of(desk, hold), goes_on, list(hold.stage_ids or []))

    async def send(self, size: int) -> bool:
        """Whether there was anything to let go. It is written down first, for the next process after a crash."""
        async with self._outflow(size) as outflow:
            taken = await outflow.take_last(size)
            self.members = [member for one in taken if (member := _member(one, self.hold))]
            if not self.members or not await self.goes_on():
                return False
            await self.queues.read_baselines({str(member["queue"]) for member in self.members})
            ids, queues = json.dumps(self.members), self.queues.as_json()
            await self.desk.books.change("canary_out", destination=self.hold.label, ids=ids, queues=queues)
            await self._let_go(outflow, taken)
        await self.desk.books.change("canary_watched", destination=self.hold.label)
        self._searched_at = _now()
        log.info("a canary is out", destination=self.hold.label, size=len(taken))
        return True

    async def passes(self) -> bool:
        """Waits for the verdict. False if it failed, or if the release is no longer wanted."""
        usual, acknowledged = await self._time_to_fail(), False
        while await self.goes_on():
            rows = await self.desk.books.rows("canary_look", destination=self.hold.label, usual=usual)
            parts = [Progress(*row) for row in rows]
            if has_failed(parts):
                await self._fail(sum(part.failed for part in parts))
                return False
            if is_reported(parts) or acknowledged:
                return True
            await asyncio.sleep(LOOK_EVERY)
            if not self._has_returned(parts):
                await self._search(parts)
            elif self._has_settled(parts):
                reason = await self._unknown_failures() or await self.queues.unacknowledged(parts)
                acknowledged = not reason  # it passes unless the next look finds a failure: rejects empty a queue, too
                if reason:
                    await self._tell(reason)
                await asyncio.sleep(READ_EVERY)
        return False

    async def _unknown_failures(self) -> str:
        """Why the audit may not know of a failure yet."""
        if (await read_intake(self.desk)).paused:
            return "the intake is paused, so a failure would not be known"
        waiting = await self.desk.binder.depth(self.desk.names.scheduled)
        if waiting > BACKLOG:
            return f"{waiting} requests wait in {self.desk.names.scheduled}, and its failure may be among them"
        return ""

    def _has_returned(self, parts: Sequence[Progress]) -> bool:
        if sum(part.returned for part in parts) < len(self.members):
            return False
        self._returned_at = self._returned_at or _now()
        return True

    def _has_settled(self, parts: Sequence[Progress]) -> bool:
        """Whether it was watched for long enough, and statistics of its queues are from after it came to them."""
        old_enough = self._returned_at is not None and _now() - self._returned_at > STATISTICS
        return old_enough and all(part.watched for part in parts)

    async def _search(self, parts: Sequence[Progress]) -> None:
        """A crash or a lost connection can leave messages of the canary in the held queue: they are let go now."""
        if _now() - self._searched_at < UNSEEN:
            return
        async with self._outflow(len(self.members)) as outflow:
            taken = await outflow.take_last(len(self.members))
            left = [one for one in taken if _member(one, self.hold) in self.members]
            await self._let_go(outflow, left)
        if not left and self._searched_at > 0:
            missing = len(self.members) - sum(part.returned for part in parts)
            await self._tell(f"{missing} of its messages were not seen to return, see `tarry status`")
        self._searched_at = _now()

    async def _let_go(self, outflow: Outflow, deliveries: Sequence[Delivery]) -> None:
        await outflow.let_go(deliveries, self.hold.rate or 1)
        if not outflow.consumer.link.is_open:
            raise BrokerUnreachableError("The connection to the broker ended while a canary was released.")

    async def _time_to_fail(self) -> timedelta:
        """How long it usually takes to fail there; nothing where the audit knows of no failure."""
        queues = sorted({str(member.get("queue", self.hold.name)) for member in self.members})
        row = await self.desk.books.one("time_to_fail", queues=queues)
        return min(row[0], self.desk.limits.longest_watch) if row and row[0] else timedelta(0)

    async def _fail(self, failed: int) -> None:
        label, size = self.hold.label, len(self.members)
        problem = f"{failed} of a canary of {size} failed again"
        await self.desk.books.change("canary_failed", destination=label, problem=problem)
        log.warning("a canary failed, the rest stays", destination=label, failed=failed, size=size)

    async def _tell(self, reason: str) -> None:
        label, size = self.hold.label, len(self.members)
        name = shlex.quote(label)
        problem = (
            f"the canary of {size} has not passed: {reason}. The release continues when it passes. "
            f"To release the rest without a canary: tarry resume {name}. To keep the rest: tarry pause {name}."
        )
        await self.desk.books.change("canary_waits", destination=label, problem=problem)
        if not self._told:
            log.warning("a canary has not passed, the rest stays", destination=label, size=size, reason=reason)
        self._told = True

    def _outflow(self, prefetch: int) -> AbstractAsyncContextManager[Outflow]:
        """Open only while it is needed: brokers close a channel that has had messages for half an hour."""
        return Outflow.open(self.desk, self.desk.names.held_queue(self.hold.destination), prefetch)


def _member(delivery: Delivery, hold: Hold) -> Member | None:
    """None for a message without tarry's headers, which cannot be looked for."""
    try:
        headers = HeaderReader(dict(walk(delivery.properties.headers or b"")))
        retry_id, round_, queue = headers.text(h.ID), headers.count(h.ROUND), headers.text(h.QUEUE)
    except (RefusalError, BadTableError):
        return None
    if retry_id is None or round_ is None:
        return None
    failed_in = queue if hold.destination.kind == "exchange" and queue else hold.name
    return {"id": retry_id, "round": round_, "queue": failed_in}


def _now() -> float:
    return asyncio.get_running_loop().time()
