"""The service's part: jobs that wait for somebody to work on them, and those that were cut off, go on here."""

from __future__ import annotations

import asyncio

import structlog

from tarry.control.desk import Desk
from tarry.control.review.work import work
from tarry.errors import ConflictError, TarryError
from tarry.router.keep import sleep_unless

log = structlog.get_logger()

EVERY = 2.0
AT_ONCE = 3
"""Jobs that one process works on: a slow one must not keep a small one waiting."""


async def run(desk: Desk, stop: asyncio.Event) -> None:
    """Until told to stop; what is under way then goes on at the next start, here or elsewhere."""
    working: dict[str, asyncio.Task[None]] = {}
    while not stop.is_set():
        working = {job: task for job, task in working.items() if not task.done()}
        try:
            waiting = await desk.books.rows("review_to_run", limit=AT_ONCE * 2)
        except TarryError as error:
            log.warning("review jobs wait", error=str(error))
        else:
            for (job_id,) in waiting:
                if job_id not in working and len(working) < AT_ONCE:
                    working[job_id] = asyncio.create_task(_one(desk, job_id, stop))
        await sleep_unless(stop, EVERY)
    if working:
        await asyncio.wait(working.values())


async def _one(desk: Desk, job_id: str, stop: asyncio.Event) -> None:
    try:
        log.info("review job begins", job=job_id)
        job = await work(desk, job_id, runner=desk.actor, stop=stop)
    except ConflictError:
        return
    except (TarryError, OSError) as error:
        log.warning("review job was cut off, and goes on later", job=job_id, error=str(error))
        await sleep_unless(stop, EVERY)
    else:
        log.info("review job ends", job=job_id, state=job.state, done=job.done, gone=job.gone, failed=job.failed)
