"""The cancel reconciler: resumes cancels and retry-nows whose caller is gone, and removes bindings no longer needed.

Every service runs it; only the process that has the lock does the work.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import structlog

from tarry.errors import BrokerError, BrokerUnreachableError, ControlError
from tarry.operations.cancel import Diversion, bind, decide, end
from tarry.operations.context import OperatorContext
from tarry.store.database import AdvisoryLock
from tarry.tasks import now_and_then

log = structlog.get_logger()

EVERY = 2.0
LEFT_FOR = timedelta(seconds=30)
"""The age at which a request is resumed: longer than any caller waits."""


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The counts of one pass."""

    finished: int = 0
    ended: int = 0


async def run(context: OperatorContext, stop: asyncio.Event, *, every: float = EVERY) -> None:
    """Runs until `stop` is set."""
    await now_and_then("cancel reconciler", lambda: reconcile(context), stop, every)


async def reconcile(context: OperatorContext, *, left_for: timedelta = LEFT_FOR) -> Reconciled:
    """One pass; does nothing if another process has the lock."""
    async with context.store.lock(AdvisoryLock.CANCEL_RECONCILER) as page:
        if page is None:
            return Reconciled()
        return Reconciled(await _finish(context, left_for), await _end(context))


async def _finish(context: OperatorContext, left_for: timedelta) -> int:
    rows = await context.store.rows("unfinished_diversions", left_for=left_for)
    return sum([await _try(context, Diversion(*row)) for row in rows])


async def _try(context: OperatorContext, diversion: Diversion) -> bool:
    """A request that cannot be finished must not block the others."""
    try:
        return await _go_on(context, diversion)
    except (ControlError, BrokerError) as error:
        if isinstance(error, BrokerUnreachableError):
            raise
        log.warning(
            "unfinished request not resumed", kind=diversion.kind, retry_id=diversion.retry_id, reason=str(error)
        )
        return False


async def _go_on(context: OperatorContext, diversion: Diversion) -> bool:
    """Does what the caller would have done, but does not wait for an outcome: the next pass looks again."""
    outcome: str | None = "diverted" if await bind(context, diversion) else await _word(context, diversion)
    verdict = await decide(context, diversion, outcome)
    if verdict == "pending":
        return False
    log.info("unfinished request resumed", kind=diversion.kind, retry_id=diversion.retry_id, verdict=verdict)
    return True


async def _word(context: OperatorContext, diversion: Diversion) -> str | None:
    row = await context.store.one("diversion_outcomes", ids=[diversion.id])
    return row[1] if row else None


async def _end(context: OperatorContext) -> int:
    """One that the broker refuses to unbind must not keep the others from being unbound."""
    ended = 0
    for row in await context.store.rows("diversions_to_end", linger=context.limits.linger):
        diversion = Diversion(*row)
        try:
            await end(context, diversion)
        except BrokerUnreachableError:
            raise
        except BrokerError as error:
            log.warning("binding not removed", retry_id=diversion.retry_id, reason=str(error))
        else:
            ended += 1
    return ended
