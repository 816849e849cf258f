"""The pass over the books, now and then, beside the router; what it found goes into the log and the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from tarry.audit.upkeep import Findings
from tarry.errors import TarryError
from tarry.router.keep import sleep_unless
from tarry.router.threads import in_thread

log = structlog.get_logger()


async def maintain(
    keeper: Callable[[], Findings], tell: Callable[[Findings | None], None], stop: asyncio.Event, every: float
) -> None:
    """Until `stop`. `tell` gets None where the pass could not be made: numbers unknown, not zero."""
    while True:
        try:
            findings = await in_thread(keeper, "upkeep")
        except TarryError as error:
            log.warning("the books were not looked over", reason=str(error))
            tell(None)
        else:
            _log(findings)
            tell(findings)
        if await sleep_unless(stop, every):
            return


def _log(findings: Findings) -> None:
    if findings.missing:
        log.error("retries are missing", number=findings.missing, do="run `tarry audit verify`")
    if findings.late:
        log.warning("retries are late", number=findings.late, oldest_s=round(findings.oldest_overdue_s))
    for stall in findings.stalled:
        log.warning("a queue is stalled", queue=stall.queue, messages=stall.messages, behind=list(stall.destinations))
    for found in findings.attachments or ():
        if found.state.may_lose_rejects:
            log.error(
                "attachment is not in effect",
                queue=found.destination.name,
                state=str(found.state),
                detail=found.detail,
            )
