"""What the review commands need done, by whom they do not care: at this desk, or by a service far away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tarry.control.desk import Desk
from tarry.control.review import jobs, listing
from tarry.control.review.adopt import Mended, adopt, remove_leftovers
from tarry.control.review.check import Checked, check, close_gone
from tarry.control.review.export import Exported, export, read_from_queue
from tarry.control.review.filters import Filter
from tarry.control.review.job import Order, Problem, Stands
from tarry.control.review.listing import By, Detail, Group, Listed, Summary
from tarry.control.review.work import work_or_wait
from tarry.errors import SettingsError


class Reviews(Protocol):
    """All that can be done with what is in review."""

    async def summary(self) -> Summary: ...
    async def count(self, chosen: Filter) -> int: ...
    async def groups(self, by: By, chosen: Filter, *, limit: int) -> list[Group]: ...
    async def page(self, chosen: Filter, *, limit: int, cursor: str | None) -> Listed: ...
    async def show(self, called: str, *, payload: bool) -> Detail: ...
    async def resolve(self, called: Sequence[str]) -> tuple[str, ...]: ...
    async def create(self, order: Order, *, here: bool) -> Stands:
        """`here`: whoever made it works on it, rather than the service."""

    async def jobs(self, *, limit: int) -> list[Stands]: ...
    async def job(self, job_id: str) -> Stands: ...
    async def problems(self, job_id: str, *, limit: int) -> list[Problem]: ...
    async def stop(self, job_id: str) -> Stands: ...
    async def go_on(self, job_id: str, *, resend_doubtful: bool, here: bool) -> Stands: ...
    async def end(self, job_id: str) -> Stands: ...
    async def work(self, job_id: str, stop: asyncio.Event) -> Stands:
        """Returns when it is done, or when it is time to stop."""


@dataclass(frozen=True, slots=True)
class AtThisDesk:
    """Straight on broker and Postgres."""

    desk: Desk

    async def summary(self) -> Summary:
        return await listing.summary(self.desk)

    async def count(self, chosen: Filter) -> int:
        return await listing.count(self.desk, chosen)

    async def groups(self, by: By, chosen: Filter, *, limit: int) -> list[Group]:
        return await listing.groups(self.desk, by, chosen, limit=limit)

    async def page(self, chosen: Filter, *, limit: int, cursor: str | None) -> Listed:
        return await listing.page(self.desk, chosen, limit=limit, cursor=cursor)

    async def show(self, called: str, *, payload: bool) -> Detail:
        found = await listing.show(self.desk, called, payload=payload)
        return await read_from_queue(self.desk, found) if payload and found.body is None else found

    async def resolve(self, called: Sequence[str]) -> tuple[str, ...]:
        return await listing.resolve(self.desk, called)

    async def create(self, order: Order, *, here: bool) -> Stands:
        return (await jobs.create(self.desk, order, actor=self.desk.actor, here=here)).stands()

    async def jobs(self, *, limit: int) -> list[Stands]:
        return [one.stands() for one in await jobs.jobs(self.desk, limit=limit)]

    async def job(self, job_id: str) -> Stands:
        return (await jobs.get(self.desk, job_id)).stands()

    async def problems(self, job_id: str, *, limit: int) -> list[Problem]:
        return await jobs.problems(self.desk, job_id, limit=limit)

    async def stop(self, job_id: str) -> Stands:
        return (await jobs.stop(self.desk, job_id, actor=self.desk.actor)).stands()

    async def go_on(self, job_id: str, *, resend_doubtful: bool, here: bool) -> Stands:
        said = {"resend_doubtful": resend_doubtful, "here": here}
        return (await jobs.go_on(self.desk, job_id, actor=self.desk.actor, **said)).stands()

    async def end(self, job_id: str) -> Stands:
        return (await jobs.end(self.desk, job_id, actor=self.desk.actor)).stands()

    async def work(self, job_id: str, stop: asyncio.Event) -> Stands:
        return (await work_or_wait(self.desk, job_id, runner=self.desk.actor, stop=stop)).stands()

    async def check(self) -> Checked:
        return await check(self.desk)

    async def mend(self, found: Checked, *, adopting: bool, closing: bool, removing: bool) -> Mended:
        return Mended(
            await adopt(self.desk, found, actor=self.desk.actor) if adopting else 0,
            await close_gone(self.desk, found, actor=self.desk.actor) if closing and found.gone else 0,
            await remove_leftovers(self.desk, found) if removing else 0,
        )

    async def export(self, chosen: Filter, into: Path, *, unknown: bool, progress: Callable[[int], None]) -> Exported:
        return await export(self.desk, chosen, into, unknown=unknown, progress=progress)


def at_this_desk(reviews: Reviews, command: str) -> AtThisDesk:
    """For what has to be done where the broker is."""
    if not isinstance(reviews, AtThisDesk):
        raise SettingsError(f"`tarry review {command}` reads the queue itself: run it without --api and TARRY_API.")
    return reviews
