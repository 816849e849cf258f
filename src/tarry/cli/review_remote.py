"""The review commands through the API of a service."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import TypeAdapter

from tarry.audit.timeline import Step
from tarry.cli.remote import Remote, segment
from tarry.control.review.filters import Filter
from tarry.control.review.job import Order, Problem, Stands
from tarry.control.review.listing import By, Detail, Edit, Group, Item, Listed, Summary
from tarry.router.keep import sleep_unless

T = TypeVar("T")
LOOK_EVERY = 0.5


@dataclass(frozen=True, slots=True)
class ThroughTheApi:
    """By a service far away, which works on the jobs too."""

    remote: Remote

    async def summary(self) -> Summary:
        return _read(Summary, await self._get("/review"))

    async def count(self, chosen: Filter) -> int:
        if chosen.ids is not None:
            return len(chosen.ids)
        return int((await self._get("/review", **chosen.told()))["fits"])

    async def groups(self, by: By, chosen: Filter, *, limit: int) -> list[Group]:
        return _read(list[Group], await self._get("/review/groups", by=by, limit=limit, **chosen.told()))

    async def page(self, chosen: Filter, *, limit: int, cursor: str | None) -> Listed:
        found = await self._get("/review/messages", limit=min(limit, 200), cursor=cursor, **chosen.told())
        return Listed(tuple(_read(list[Item], found["items"])), found["next"])

    async def show(self, called: str, *, payload: bool) -> Detail:
        found = await self._get(f"/review/messages/{segment(called)}")
        detail = Detail(
            item=_read(Item, found),
            exchange=found["exchange"],
            routing_key=found["routing_key"],
            job_id=found["job_id"],
            steps=tuple(_read(list[Step], found["steps"])),
            edits=tuple(_read(list[Edit], found["edits"])),
        )
        if not payload:
            return detail
        stored = await self._get(f"/review/messages/{segment(called)}/payload")
        return replace(detail, body=base64.b64decode(stored["body"]), properties=stored["properties"])

    async def resolve(self, called: Sequence[str]) -> tuple[str, ...]:
        found = [await self._get(f"/review/messages/{segment(one)}") for one in called]
        return tuple(one["retry_id"] for one in found)

    async def create(self, order: Order, *, here: bool) -> Stands:
        del here  # the service works on it in any case
        manner = order.manner
        body = manner.edits.body
        return await self._act(
            "/review/jobs",
            kind=order.kind,
            which=order.chosen.told(),
            fresh=manner.fresh,
            to=manner.to,
            delay_ms=manner.delay_ms,
            rate=order.rate,
            reason=order.reason,
            set_headers=dict(manner.edits.headers),
            drop_headers=list(manner.edits.dropped),
            edit_body=None if body is None else base64.b64encode(body).decode(),
        )

    async def jobs(self, *, limit: int) -> list[Stands]:
        return _read(list[Stands], await self._get("/review/jobs", limit=min(limit, 200)))

    async def job(self, job_id: str) -> Stands:
        return _read(Stands, await self._get(f"/review/jobs/{segment(job_id)}"))

    async def problems(self, job_id: str, *, limit: int) -> list[Problem]:
        return _read(list[Problem], (await self._get(f"/review/jobs/{segment(job_id)}"))["problems"])[:limit]

    async def stop(self, job_id: str) -> Stands:
        return await self._act(f"/review/jobs/{segment(job_id)}/stop")

    async def go_on(self, job_id: str, *, resend_doubtful: bool, here: bool) -> Stands:
        del here
        return await self._act(f"/review/jobs/{segment(job_id)}/go-on", resend_doubtful=resend_doubtful)

    async def end(self, job_id: str) -> Stands:
        return await self._act(f"/review/jobs/{segment(job_id)}/end")

    async def work(self, job_id: str, stop: asyncio.Event) -> Stands:
        """Only watches."""
        while (now := await self.job(job_id)).state not in ("done", "stopped"):
            if await sleep_unless(stop, LOOK_EVERY):
                return await self.job(job_id)
        return now

    async def _get(self, path: str, **parameters: object) -> Any:
        return await asyncio.to_thread(self.remote.get, path, parameters)

    async def _act(self, path: str, **body: object) -> Stands:
        return _read(Stands, await asyncio.to_thread(self.remote.act, path, body))


def _read(kind: type[T], data: Any) -> T:
    return TypeAdapter(kind).validate_python(data)
