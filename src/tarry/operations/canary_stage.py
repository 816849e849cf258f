"""One stage of a release: a canary is released, and watched until it passes or fails by the rules in `canary`.

The paused destination's row stores what another process needs to continue: the messages of the canary, and the state of
its queues before the release.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import BadTableError, pick
from tarry.amqp.management import STATISTICS
from tarry.audit.maintenance import BACKLOG
from tarry.contract import headers as h
from tarry.contract.header_reader import RefusalError
from tarry.contract.identity import MOST_ROUNDS
from tarry.contract.retry_headers import read_retry_headers
from tarry.errors import BrokerUnreachableError
from tarry.operations.canary import CanaryProgress, CanaryQueues, has_failed, is_reported, is_void
from tarry.operations.context import OperatorContext
from tarry.operations.held_queue import HeldQueue
from tarry.operations.intake import read_intake
from tarry.operations.paused_destination import PausedDestination, command_arguments

log = structlog.get_logger()

Member = dict[str, str | int]
"""A message of the canary: `id`, `round`, and the `queue` it failed in."""

_READ = frozenset(name.encode() for name in (h.ID, h.ROUND, h.QUEUE))

LOOK_EVERY = 0.5
READ_EVERY = 2.0
"""Seconds between two readings of a canary's queues."""

UNSEEN = 30.0
"""Seconds after which the held queue is searched for messages of the canary that have not returned."""


@dataclass(slots=True)
class CanaryStage:
    """One canary; only one process works on it at a time."""

    context: OperatorContext
    paused: PausedDestination
    queues: CanaryQueues
    goes_on: Callable[[], Awaitable[bool]]
    """Whether the release is still wanted."""
    members: list[Member] = field(default_factory=list)
    is_void: bool = False
    """Whether all of its messages were cancelled: it tells nothing about the destination, and another one is needed."""
    _returned_at: float | None = None
    _searched_at: float = float("-inf")
    _reported: bool = False

    @classmethod
    def of(
        cls, context: OperatorContext, paused: PausedDestination, goes_on: Callable[[], Awaitable[bool]]
    ) -> CanaryStage:
        """Continues with the canary that another process has released, if there is one."""
        return cls(context, paused, CanaryQueues.of(context, paused), goes_on, list(paused.stage_ids or []))

    async def send(self, size: int) -> bool:
        """Releases a canary; False if there was nothing to release, or the release is no longer wanted.

        The canary is stored first, so that another process can continue after a crash. Messages that are not tarry's
        own are released on the way: nothing can be observed of them, so they are not the canary.
        """
        self.members, self._returned_at, self._reported = [], None, False
        while not self.members:
            async with self._outflow(size) as held_queue:
                taken = await held_queue.take_last(size)
                self.members = [member for one in taken if (member := _member(one, self.paused))]
                if not taken or not await self.goes_on():
                    return False
                if self.members:
                    await self._store_canary()
                await self._release(held_queue, taken)
        await self.context.store.change("canary_watched", destination=self.paused.label)
        self._searched_at = _now()
        log.info("canary released", destination=self.paused.label, size=len(self.members))
        return True

    async def _store_canary(self) -> None:
        await self.queues.read_baselines({str(member["queue"]) for member in self.members})
        ids, queues = json.dumps(self.members), self.queues.as_json()
        await self.context.store.change("canary_out", destination=self.paused.label, ids=ids, queues=queues)

    async def passes(self) -> bool:
        """Waits until the canary passes or fails. False if it failed, or if the release is no longer wanted."""
        usual, acknowledged = await self._time_to_fail(), False
        while await self.goes_on():
            rows = await self.context.store.rows("canary_look", destination=self.paused.label, usual=usual)
            parts = [CanaryProgress(*row) for row in rows]
            if has_failed(parts):
                await self._fail(sum(part.failed for part in parts))
                return False
            if is_reported(parts) or acknowledged:
                self.is_void = is_void(parts)
                return True
            await asyncio.sleep(LOOK_EVERY)
            if not self._has_returned(parts):
                await self._search(parts)
            elif self._has_settled(parts):
                reason = await self._unknown_failures() or await self.queues.unacknowledged(parts)
                acknowledged = not reason  # passes unless the next read shows a failure: rejects empty a queue too
                if reason:
                    await self._tell(reason)
                await asyncio.sleep(READ_EVERY)
        return False

    async def _unknown_failures(self) -> str:
        """Why the audit may not have recorded a failure yet; empty if there is no reason."""
        if (await read_intake(self.context)).paused:
            return "the intake is paused, so a failure would not be seen"
        waiting = await self.context.binder.depth(self.context.names.scheduled)
        if waiting > BACKLOG:
            return f"{waiting} requests wait in {self.context.names.scheduled}, and its failure may be among them"
        return ""

    def _has_returned(self, parts: Sequence[CanaryProgress]) -> bool:
        if sum(part.returned for part in parts) < len(self.members):
            return False
        self._returned_at = self._returned_at or _now()
        return True

    def _has_settled(self, parts: Sequence[CanaryProgress]) -> bool:
        """Whether it was watched for long enough, and the statistics of its queues are newer than its arrival there."""
        old_enough = self._returned_at is not None and _now() - self._returned_at > STATISTICS
        return old_enough and all(part.watched for part in parts)

    async def _search(self, parts: Sequence[CanaryProgress]) -> None:
        """Releases messages of the canary that a crash or a lost connection has left in the held queue."""
        if _now() - self._searched_at < UNSEEN:
            return
        async with self._outflow(len(self.members)) as held_queue:
            taken = await held_queue.take_last(len(self.members))
            left = [one for one in taken if _member(one, self.paused) in self.members]
            await self._release(held_queue, left)
        if not left and self._searched_at > 0:
            missing = len(self.members) - sum(part.returned for part in parts)
            where = "see `tarry status`, and `tarry pauses` for another pause of them"
            await self._tell(f"{missing} of its messages were not seen to return: {where}")
        self._searched_at = _now()

    async def _release(self, held_queue: HeldQueue, deliveries: Sequence[Delivery]) -> None:
        await held_queue.release(deliveries, self.paused.effective_rate)
        if not held_queue.consumer.link.is_open:
            raise BrokerUnreachableError("The connection to the broker ended while a canary was released.")

    async def _time_to_fail(self) -> timedelta:
        """How long messages of these queues usually take to fail; zero if the audit has no failure of them."""
        queues = sorted({str(member.get("queue", self.paused.name)) for member in self.members})
        row = await self.context.store.one("time_to_fail", queues=queues)
        return min(row[0], self.context.limits.longest_watch) if row and row[0] else timedelta(0)

    async def _fail(self, failed: int) -> None:
        label, size = self.paused.label, len(self.members)
        problem = f"{failed} of a canary of {size} failed again"
        await self.context.store.change("canary_failed", destination=label, problem=problem)
        log.warning("canary failed, the rest stays held", destination=label, failed=failed, size=size)

    async def _tell(self, reason: str) -> None:
        label, size = self.paused.label, len(self.members)
        problem = f"the canary of {size} has not passed: {reason}. The release continues when it passes. {self._remedy}"
        await self.context.store.change("canary_waits", destination=label, problem=problem)
        if not self._reported:
            log.warning("canary not passed, the rest stays held", destination=label, size=size, reason=reason)
        self._reported = True

    @property
    def _remedy(self) -> str:
        which = command_arguments(self.paused.holder)
        if self.paused.by_breaker:
            return f"To release the rest without a canary: tarry breakers close {which} --reason '…'."
        return f"To release the rest without a canary: tarry resume {which}. To keep the rest: tarry pause {which}."

    def _outflow(self, prefetch: int) -> AbstractAsyncContextManager[HeldQueue]:
        """Open only while needed: brokers close a channel that has had unacknowledged messages for half an hour."""
        return HeldQueue.open(self.context, self.context.names.held_queue(self.paused.holder), prefetch)


def _member(delivery: Delivery, paused: PausedDestination) -> Member | None:
    """None for a message without tarry's headers, which cannot be searched for."""
    try:
        own = read_retry_headers(pick(delivery.properties.headers or b"", _READ))
        own.check(h.ID, h.QUEUE)
    except (RefusalError, BadTableError):
        return None
    if own.retry_id is None or own.round is None or own.round > MOST_ROUNDS:
        return None
    failed_in = own.queue if paused.holder.kind != "queue" and own.queue else paused.name
    return {"id": own.retry_id, "round": own.round, "queue": failed_in}


def _now() -> float:
    return asyncio.get_running_loop().time()
