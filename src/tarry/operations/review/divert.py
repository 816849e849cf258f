"""Works on a job of waiting retries: cancels them, or sends them now. One after the other as `tarry cancel` does it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from tarry.errors import AuditError, Code, ControlError, NotFoundError, TarryError
from tarry.operations.cancel import Kind, ask, ask_credits, carry_out, find, just_changed
from tarry.operations.context import OperatorContext
from tarry.operations.review.jobs import Job
from tarry.operations.review.pace import Pace
from tarry.tasks import sleep_unless

AT_ONCE = 8
"""Retries that are worked on at the same time."""

SLICE = 500

WHILE_TOO_MANY = 5.0
"""Seconds to wait while an old broker has as many diversions as it bears."""

TOO_LATE = "it had returned before"
NOT_KNOWN = "requested, and its outcome is not known yet: see its history"

Item = tuple[str, int]
"""A retry id and a round."""

Result = tuple[str, str | None]
"""The state of the item, and the problem."""


@dataclass(slots=True)
class Diverting:
    """One run of such a job."""

    context: OperatorContext
    job: Job
    pace: Pace
    after_interruption: bool
    _too_many: bool = False

    async def run(self) -> None:
        if self.after_interruption:
            await self._settle()
        while not self.pace.halted.is_set():
            await self.context.store.rows("review_no_longer_waiting", job=self.job.id)
            most = self.pace.most(SLICE)
            items = await self.context.store.rows("review_next_items", job=self.job.id, limit=most + 1)
            if not items:
                return
            await self._work([(one[0], one[1]) for one in items[:most]])
            if len(items) > most:
                await self.pace.next_batch()

    async def _work(self, items: Sequence[Item]) -> None:
        size = self.pace.batch(AT_ONCE)
        for start in range(0, len(items), size):
            batch = items[start : start + size]
            await self.pace.wait(len(batch))
            if self.pace.halted.is_set():
                return
            taken = await self.context.store.rows("review_take_items", job=self.job.id, ids=[one[0] for one in batch])
            ours = {row[0] for row in taken}
            work = (self._one(item) for item in batch if item[0] in ours)
            for error in await asyncio.gather(*work, return_exceptions=True):
                if isinstance(error, BaseException):
                    raise error
            if self._too_many:
                self._too_many = False
                await sleep_unless(self.pace.halted, WHILE_TOO_MANY)
                return

    async def _one(self, item: Item) -> None:
        """An error of the broker or of Postgres interrupts the job, which is resumed later with this item."""
        try:
            state, problem = await self._divert(item)
        except ControlError as error:
            if error.code is Code.TOO_MANY_IN_PROGRESS:
                self._too_many = True
                await self._untake(item[0])
                return
            state, problem = "failed", str(error)
        except TarryError:
            with suppress(AuditError):
                await self._untake(item[0])
            raise
        await self._close(item[0], state, problem)

    async def _divert(self, item: Item) -> Result:
        kind: Kind = "cancel" if self.job.kind == "cancel" else "retry_now"
        try:
            waiting = await find(self.context, item[0], kind)
        except NotFoundError as error:
            return "skipped", str(error)
        if waiting.round != item[1]:
            raise just_changed(item[0])
        if kind == "retry_now":
            await ask_credits(self.context, waiting, waiting.state, self.job.actor, self.job.reason)
        diversion = await ask(self.context, waiting, kind, self.job.actor, self.job.reason)
        verdict = await carry_out(self.context, diversion)
        return _result(verdict)

    async def _settle(self) -> None:
        """What an interrupted run had requested; what it had not is done again."""
        for retry_id, is_asked, verdict in await self.context.store.rows("review_diverted", job=self.job.id):
            if not is_asked or verdict == "dropped":
                await self._untake(retry_id)
            else:
                await self._close(retry_id, *_result(verdict or "pending"))

    async def _untake(self, retry_id: str) -> None:
        await self.context.store.rows("review_untake_items", job=self.job.id, ids=[retry_id])

    async def _close(self, retry_id: str, state: str, problem: str | None) -> None:
        await self.context.store.rows(
            "review_close_items", job=self.job.id, ids=[retry_id], state=state, problem=problem
        )


def _result(verdict: str) -> Result:
    if verdict == "returned":
        return "failed", TOO_LATE
    return ("unconfirmed", NOT_KNOWN) if verdict == "pending" else ("done", None)
