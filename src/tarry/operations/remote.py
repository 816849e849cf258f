"""`RemoteOperations`: every operation through the HTTP API of a service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from tarry.analytics.rollups import Dimension, StatisticFilter
from tarry.audit.status import AttemptOutcomes
from tarry.audit.verify import AuditRules
from tarry.core.durations import format_duration
from tarry.core.json_types import encode_base64
from tarry.errors import NotFoundError, SettingsError
from tarry.events.cloudevent import Event
from tarry.events.stream import EventFilter, StreamedEvent
from tarry.operations.adaptive import AdaptiveList, ErrorChoiceChanged
from tarry.operations.api_client import ApiClient, ServerEvents, segment
from tarry.operations.audit import (
    BalanceReport,
    Progress,
    RecoverReport,
    VerifyReport,
    WriteOffReport,
    no_progress,
)
from tarry.operations.breaker import BreakerView
from tarry.operations.budgets import BudgetList, OwnerLimitChanged
from tarry.operations.cancel import Diverted
from tarry.operations.explain import Explained, PolicySchedule
from tarry.operations.intake import Intake
from tarry.operations.lookup import ActionRow, Order, RetryFilter, RetryRow, StoredPayload
from tarry.operations.overview import Activity, DestinationNumbers
from tarry.operations.paging import Page
from tarry.operations.pause import OBSERVE, RATE, Paused, Pauses, ReleaseOptions, Resumed, Scope
from tarry.operations.policy_replay import MOST, PolicyReplay
from tarry.operations.retry_now import Retried
from tarry.operations.review.browse import (
    By,
    EditedMessage,
    Filter,
    Group,
    ReviewDetail,
    ReviewItem,
    ReviewPayload,
    Summary,
)
from tarry.operations.review.export import Exported, ExportFolder, about_stored, file_name
from tarry.operations.review.jobs import JobProblem, JobSpec, JobStatus
from tarry.operations.review.reconcile import Checked
from tarry.operations.statistics import MOST as MOST_STATISTICS
from tarry.operations.statistics import StatisticsReport
from tarry.operations.status import ServiceStatus
from tarry.operations.stuck import StuckAttempt, StuckRecovery, Wanted
from tarry.operations.throttle import Throttled, Unthrottled
from tarry.operations.webhooks import WebhookReplay, WebhookStatus, WebhookTest
from tarry.store.history import Timeline
from tarry.tasks import sleep_unless

T = TypeVar("T")

LOOK_EVERY = 0.5
"""Seconds between two requests for the progress of a job."""

LONGEST_PAGE = 200
MOST_OVER_HTTP = 10_000
"""Messages of a replay: it must be done before the request times out."""


@dataclass(frozen=True, slots=True)
class RemoteOperations:
    """Implements `Operations`. The service works on all jobs."""

    api: ApiClient

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, token: str | None, person: str) -> AsyncIterator[RemoteOperations]:
        async with ApiClient.open(url, token, person) as api:
            yield cls(api)

    async def status(self) -> ServiceStatus:
        return await self._get(ServiceStatus, "/status")

    async def activity(self) -> Activity:
        return await self._get(Activity, "/activity")

    async def balance(self) -> BalanceReport:
        return await self._get(BalanceReport, "/audit/balance")

    async def outcomes(self, within: timedelta, *, queue: str | None = None) -> list[AttemptOutcomes]:
        return await self._get(list[AttemptOutcomes], "/audit/attempts", within=_text(within), queue=queue)

    async def verify(
        self, rules: AuditRules, *, since: datetime | None = None, queue: str | None = None
    ) -> VerifyReport:
        began = since.isoformat() if since else None
        return await self._get(VerifyReport, "/audit/verify", since=began, queue=queue, **_limits(rules))

    async def recover(
        self, rules: AuditRules, *, review: bool = False, execute: bool = False, progress: Progress = no_progress
    ) -> RecoverReport:
        del progress
        return await self._post(RecoverReport, "/audit/recover", review=review, execute=execute, **_limits(rules))

    async def write_off(
        self, rules: AuditRules, *, retry_ids: Sequence[str] = (), reason: str, execute: bool = False
    ) -> WriteOffReport:
        wanted = {"retry_ids": list(retry_ids), "reason": reason, "execute": execute}
        return await self._post(WriteOffReport, "/audit/write-off", **wanted, **_limits(rules))

    async def history(self, called: str) -> list[Timeline]:
        return await self._get(list[Timeline], f"/history/{segment(called)}")

    async def list_retries(
        self, wanted: RetryFilter, *, order: Order | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[RetryRow]:
        about = wanted.conditions()
        return await self._get(
            Page[RetryRow],
            "/retries",
            **(about | {"state": about.pop("states", None)}),
            order=order,
            limit=limit,
            cursor=cursor,
        )

    async def show_retry(self, called: str) -> Timeline:
        return await self._get(Timeline, f"/retries/{segment(called)}")

    async def show_payload(self, called: str) -> StoredPayload:
        return await self._get(StoredPayload, f"/retries/{segment(called)}/payload")

    async def list_edits(self, called: str) -> list[EditedMessage]:
        return await self._get(list[EditedMessage], f"/retries/{segment(called)}/edits")

    async def cancel(self, called: str, *, reason: str | None = None) -> Diverted:
        return await self._post(Diverted, f"/retries/{segment(called)}/cancel", reason=reason)

    async def retry_now(self, called: str, *, reason: str | None = None) -> Retried:
        return await self._post(Retried, f"/retries/{segment(called)}/retry", reason=reason)

    async def list_stuck(self, *, queue: str | None = None, limit: int = 50) -> list[StuckAttempt]:
        return await self._get(list[StuckAttempt], "/stuck", queue=queue, limit=min(limit, LONGEST_PAGE))

    async def recover_stuck(self, wanted: Wanted) -> StuckRecovery:
        return await self._post(
            StuckRecovery,
            "/stuck/recover",
            ids=list(wanted.ids),
            queue=wanted.queue,
            everything=wanted.everything,
            to_review=wanted.to_review,
            at_once=wanted.at_once,
            reason=wanted.reason,
        )

    async def explain(
        self, messages: Sequence[Mapping[str, Any]], *, queue: str | None = None, ask: bool = False
    ) -> list[Explained]:
        return await self._post(list[Explained], "/explain", messages=list(messages), queue=queue, **_if_asked(ask))

    async def explain_first(self, queue: str, *, ask: bool = False) -> Explained:
        return await self._post(Explained, "/explain/first", queue=queue, **_if_asked(ask))

    async def policy_schedules(
        self,
        *,
        policy: str | None = None,
        queue: str | None = None,
        priority: str | None = None,
        job_type: str | None = None,
    ) -> list[PolicySchedule]:
        wanted = {"policy": policy, "queue": queue, "priority": priority, "job_type": job_type}
        return await self._get(list[PolicySchedule], "/explain/schedules", **wanted)

    async def replay_policies(
        self,
        toml: str,
        *,
        since: datetime,
        label: str = "changes",
        most: int = MOST,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> PolicyReplay:
        """The service replays fewer messages at a time, and tells no progress."""
        del progress
        body = {"toml": toml, "label": label, "since": since.isoformat(), "most": min(most, MOST_OVER_HTTP)}
        return await self._post(PolicyReplay, "/policies/replay", **body)

    async def statistics(
        self,
        wanted: StatisticFilter,
        by: Sequence[Dimension] = (),
        *,
        by_time: bool = False,
        limit: int = MOST_STATISTICS,
    ) -> StatisticsReport:
        return await self._get(
            StatisticsReport,
            "/statistics",
            since=wanted.since.isoformat(),
            until=wanted.until.isoformat(),
            by=list(by) or None,
            span=wanted.span,
            over_time=by_time,
            queue=wanted.queue,
            policy=wanted.policy,
            error=wanted.error,
            owner=wanted.owner,
            attempt=wanted.attempt,
            limit=limit,
        )

    async def destinations(self, pattern: str = "*") -> list[str]:
        found = await self.api.get("/queues", {"match": pattern})
        return [one["name"] for one in found["items"]]

    async def destination_numbers(self, pattern: str = "*") -> list[DestinationNumbers]:
        return await self._get(list[DestinationNumbers], "/destinations", match=pattern)

    async def pause(
        self,
        pattern: str = "",
        *,
        scope: Scope = "queue",
        reason: str | None = None,
        lasts: timedelta | None = None,
        at_end: ReleaseOptions | None = None,
    ) -> Paused:
        about: dict[str, object] = {"reason": reason, "lasts": None if lasts is None else _text(lasts)}
        if at_end is not None:
            about["at_end"] = {"rate": at_end.rate, "canary": at_end.canary, "observe": _text(at_end.observe)}
        if scope != "queue":
            return await self._post(Paused, "/pauses", scope=scope, name=pattern or None, **about)
        return await self._post(Paused, f"/queues/{segment(pattern)}/pause", **about)

    async def resume(
        self,
        pattern: str = "",
        *,
        scope: Scope = "queue",
        rate: int = RATE,
        canary: bool = False,
        observe: timedelta = OBSERVE,
    ) -> Resumed:
        how: dict[str, object] = {"rate": rate, "canary": canary, "observe": _text(observe)}
        if scope != "queue":
            return await self._post(Resumed, "/pauses/resume", scope=scope, name=pattern or None, **how)
        return await self._post(Resumed, f"/queues/{segment(pattern)}/resume", **how)

    async def throttle(
        self, pattern: str, *, rate: int, reason: str | None = None, lasts: timedelta | None = None
    ) -> Throttled:
        about = {"rate": rate, "reason": reason, "lasts": None if lasts is None else _text(lasts)}
        return await self._post(Throttled, f"/queues/{segment(pattern)}/throttle", **about)

    async def unthrottle(self, pattern: str, *, reason: str | None = None) -> Unthrottled:
        return await self._post(Unthrottled, f"/queues/{segment(pattern)}/unthrottle", reason=reason)

    async def show_pauses(self) -> Pauses:
        return await self._get(Pauses, "/pauses")

    async def list_breakers(self) -> list[BreakerView]:
        return await self._get(list[BreakerView], "/breakers")

    async def open_breaker(
        self, queue: str, *, reason: str | None = None, lasts: timedelta | None = None
    ) -> BreakerView:
        about = {"reason": reason, "lasts": None if lasts is None else _text(lasts)}
        return await self._post(BreakerView, f"/queues/{segment(queue)}/breaker/open", **about)

    async def close_breaker(self, queue: str, *, reason: str) -> BreakerView:
        return await self._post(BreakerView, f"/queues/{segment(queue)}/breaker/close", reason=reason)

    async def free_breaker(self, queue: str, *, reason: str | None = None) -> BreakerView:
        return await self._post(BreakerView, f"/queues/{segment(queue)}/breaker/auto", reason=reason)

    async def show_intake(self) -> Intake:
        return await self._get(Intake, "/intake")

    async def pause_intake(self, *, reason: str | None = None, lasts: timedelta | None = None) -> Intake:
        return await self._post(Intake, "/intake/pause", reason=reason, lasts=None if lasts is None else _text(lasts))

    async def resume_intake(self, *, reason: str | None = None) -> Intake:
        return await self._post(Intake, "/intake/resume", reason=reason)

    async def list_budgets(self, *, owner: str | None = None, policy: str | None = None, limit: int = 50) -> BudgetList:
        return await self._get(BudgetList, "/budgets", owner=owner, policy=policy, limit=min(limit, LONGEST_PAGE))

    async def set_budget(
        self,
        owner: str,
        *,
        policy: str | None = None,
        hourly: int | None = None,
        daily: int | None = None,
        monthly: int | None = None,
        max_retries: int | None = None,
        reason: str | None = None,
    ) -> OwnerLimitChanged:
        limits = {"hourly": hourly, "daily": daily, "monthly": monthly, "max_retries": max_retries}
        return await self._post(
            OwnerLimitChanged, f"/budgets/{segment(owner)}/set", policy=policy, reason=reason, **limits
        )

    async def unset_budget(
        self, owner: str, *, policy: str | None = None, reason: str | None = None
    ) -> OwnerLimitChanged:
        return await self._post(OwnerLimitChanged, f"/budgets/{segment(owner)}/unset", policy=policy, reason=reason)

    async def list_given_up(self, *, queue: str | None = None, limit: int = 50) -> AdaptiveList:
        return await self._get(AdaptiveList, "/adaptive", queue=queue, limit=min(limit, LONGEST_PAGE))

    async def retry_error(
        self, queue: str, error: str, *, always: bool = False, reason: str | None = None
    ) -> ErrorChoiceChanged:
        path = f"/queues/{segment(queue)}/adaptive/retry"
        return await self._post(ErrorChoiceChanged, path, error=error, always=always, reason=reason)

    async def judge_error(self, queue: str, error: str, *, reason: str | None = None) -> ErrorChoiceChanged:
        path = f"/queues/{segment(queue)}/adaptive/auto"
        return await self._post(ErrorChoiceChanged, path, error=error, reason=reason)

    async def events(self, wanted: EventFilter) -> AsyncGenerator[StreamedEvent, None]:
        parameters = {
            "follow": wanted.follow,
            "since": wanted.since.isoformat() if wanted.since else None,
            "queue": wanted.queue,
            "state": sorted(wanted.states) or None,
        }
        headers = {} if wanted.after is None else {"Last-Event-ID": str(wanted.after)}
        return self._events(await self.api.open_stream("/events", parameters, headers))

    async def _events(self, stream: ServerEvents) -> AsyncGenerator[StreamedEvent, None]:
        async with aclosing(stream):
            async for id_, text in stream.messages():
                event = Event.of_json(json.loads(text))
                if event is not None:
                    yield StreamedEvent(int(id_), event)

    async def list_webhooks(self) -> list[WebhookStatus]:
        return await self._get(list[WebhookStatus], "/webhooks")

    async def test_webhook(self, name: str) -> WebhookTest:
        return await self._post(WebhookTest, f"/webhooks/{segment(name)}/test")

    async def replay_webhook(
        self,
        name: str,
        *,
        since: datetime,
        everything: bool = False,
        progress: Callable[[int], None] = lambda _: None,
    ) -> WebhookReplay:
        del progress
        path = f"/webhooks/{segment(name)}/replay"
        return await self._post(WebhookReplay, path, since=since.isoformat(), everything=everything)

    async def list_actions(
        self,
        *,
        actor: str | None = None,
        kind: str | None = None,
        target: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[ActionRow]:
        return await self._get(
            Page[ActionRow], "/actions", actor=actor, kind=kind, target=target, limit=limit, cursor=cursor
        )

    async def review_summary(self, chosen: Filter) -> Summary:
        return await self._get(Summary, "/review", **chosen.conditions())

    async def review_groups(self, by: By, chosen: Filter, *, limit: int = 50) -> list[Group]:
        return await self._get(list[Group], "/review/groups", by=by, limit=limit, **chosen.conditions())

    async def list_review(self, chosen: Filter, *, limit: int = 50, cursor: str | None = None) -> Page[ReviewItem]:
        limit = min(limit, LONGEST_PAGE)
        return await self._get(Page[ReviewItem], "/review/messages", limit=limit, cursor=cursor, **chosen.conditions())

    async def show_review(self, called: str) -> ReviewDetail:
        return await self._get(ReviewDetail, f"/review/messages/{segment(called)}")

    async def review_payload(self, called: str) -> ReviewPayload:
        return await self._get(ReviewPayload, f"/review/messages/{segment(called)}/payload")

    async def review_ids(self, called: Sequence[str]) -> tuple[str, ...]:
        return tuple([(await self.show_review(one)).retry_id for one in called])

    async def check_review(self, *, adopt: bool = False, close: bool = False, remove: bool = False) -> Checked:
        return await self._post(Checked, "/review/check", adopt=adopt, close=close, remove=remove)

    async def export_review(
        self, chosen: Filter, into: Path, *, unknown: bool = False, progress: Callable[[int], None] = lambda _: None
    ) -> Exported:
        """Message by message. The store's payload is exported; the service reads the queue where there is none."""
        if unknown:
            raise SettingsError("--unknown reads the queue itself: run it without --api and TARRY_API.")
        found = [one async for one in self._all(chosen)]
        if not found:
            raise NotFoundError("Nothing in review matches: see `tarry review list` for what there is.")
        folder, missing = ExportFolder.new(into, progress), list[str]()
        for retry_id in found:
            try:
                detail, payload = await self.show_review(retry_id), await self.review_payload(retry_id)
            except NotFoundError:
                missing.append(retry_id)
            else:
                folder.add(file_name(detail.retry_id, detail.round), about_stored(detail, payload), payload.body)
        about = {"service": self.api.at.place, "filter": chosen.conditions(), "unknown_to_the_books": False}
        return folder.finish(about, tuple(missing))

    async def create_job(self, spec: JobSpec, *, here: bool = False) -> JobStatus:
        del here
        options, body = spec.options, spec.options.edits.body
        return await self._post(
            JobStatus,
            "/review/jobs",
            kind=spec.kind,
            **({"which": spec.chosen.conditions()} if spec.retries is None else {"retries": spec.retries.conditions()}),
            **({} if spec.watch is None else {"watch": _text(spec.watch)}),
            **({"prepared": True} if spec.prepared else {}),
            reset_attempts=options.reset_attempts,
            to=options.to,
            delay_ms=options.delay_ms,
            rate=spec.rate,
            reason=spec.reason,
            set_headers=dict(options.edits.headers),
            drop_headers=list(options.edits.dropped),
            edit_body=None if body is None else encode_base64(body),
        )

    async def list_jobs(self, *, only_open: bool = False, limit: int = 50) -> list[JobStatus]:
        limit = min(limit, LONGEST_PAGE)
        return await self._get(list[JobStatus], "/review/jobs", only_open=only_open, limit=limit)

    async def show_job(self, job_id: str) -> JobStatus:
        return await self._get(JobStatus, f"/review/jobs/{segment(job_id)}")

    async def job_problems(self, job_id: str, *, limit: int = 100) -> list[JobProblem]:
        found = await self.api.get(f"/review/jobs/{segment(job_id)}")
        return _read(list[JobProblem], found["problems"])[:limit]

    async def stop_job(self, job_id: str) -> JobStatus:
        return await self._post(JobStatus, f"/review/jobs/{segment(job_id)}/stop")

    async def resume_job(self, job_id: str, *, resend_unconfirmed: bool = False, here: bool = False) -> JobStatus:
        del here
        path = f"/review/jobs/{segment(job_id)}/resume"
        return await self._post(JobStatus, path, resend_unconfirmed=resend_unconfirmed)

    async def abandon_job(self, job_id: str) -> JobStatus:
        return await self._post(JobStatus, f"/review/jobs/{segment(job_id)}/abandon")

    async def work_on_job(self, job_id: str, stop: asyncio.Event) -> JobStatus:
        """Only waits: the service does the work."""
        while (now := await self.show_job(job_id)).state not in ("done", "stopped", "prepared"):
            if await sleep_unless(stop, LOOK_EVERY):
                return await self.show_job(job_id)
        return now

    async def _all(self, chosen: Filter) -> AsyncIterator[str]:
        """The ids of everything that matches."""
        if chosen.ids is not None:
            for one in chosen.ids:
                yield one
            return
        cursor: str | None = None
        while True:
            page = await self.list_review(chosen, limit=LONGEST_PAGE, cursor=cursor)
            for item in page.items:
                yield item.retry_id
            if (cursor := page.next) is None:
                return

    async def _get(self, kind: type[T], path: str, /, **parameters: object) -> T:
        return _read(kind, await self.api.get(path, parameters))

    async def _post(self, kind: type[T], path: str, /, **body: object) -> T:
        return _read(kind, await self.api.post(path, body))


def _if_asked(ask: bool) -> dict[str, bool]:  # noqa: FBT001 - a field of a request
    """Left out unless it is wanted: a service of the previous version refuses a field that it does not know."""
    return {"ask": True} if ask else {}


def _read(kind: type[T], data: Any) -> T:
    return TypeAdapter(kind).validate_python(data)


def _limits(rules: AuditRules) -> dict[str, str]:
    return {
        "grace": _text(rules.grace),
        "settle": _text(rules.settle),
        "patience": _text(timedelta(seconds=rules.patience)),
        "offered_again": _text(rules.offered_again),
    }


def _text(length: timedelta) -> str:
    return format_duration(round(length.total_seconds() * 1000))
