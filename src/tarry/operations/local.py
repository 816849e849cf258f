"""`LocalOperations`: every operation on the broker and Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tarry.analytics.rollups import Dimension, StatisticFilter
from tarry.audit.status import AttemptOutcomes
from tarry.audit.verify import AuditRules
from tarry.events.stream import EventFilter, StreamedEvent, read_events
from tarry.operations import (
    adaptive,
    audit,
    breaker,
    budgets,
    cancel,
    intake,
    lookup,
    overview,
    pause,
    policy_replay,
    retry_now,
    statistics,
    stuck,
    throttle,
    webhooks,
)
from tarry.operations.adaptive import AdaptiveList, ErrorChoiceChanged
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
from tarry.operations.context import OperatorContext
from tarry.operations.explain import Explained, Explainer, PolicySchedule
from tarry.operations.intake import Intake
from tarry.operations.lookup import ActionRow, Order, RetryFilter, RetryRow, StoredPayload
from tarry.operations.overview import Activity, DestinationNumbers
from tarry.operations.paging import Page
from tarry.operations.pause import OBSERVE, RATE, Paused, Pauses, ReleaseOptions, Resumed, Scope
from tarry.operations.policy_replay import MOST, PolicyReplay
from tarry.operations.retry_now import Retried
from tarry.operations.review import browse, export, jobs, reconcile
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
from tarry.operations.review.export import Exported
from tarry.operations.review.jobs import JobProblem, JobSpec, JobStatus
from tarry.operations.review.reconcile import Checked
from tarry.operations.review.work import work_or_wait
from tarry.operations.statistics import MOST as MOST_STATISTICS
from tarry.operations.statistics import StatisticsReport
from tarry.operations.status import PATIENCE, ServiceStatus, read_status
from tarry.operations.stuck import StuckAttempt, StuckRecovery, Wanted
from tarry.operations.throttle import Throttled, Unthrottled
from tarry.operations.webhooks import WebhookReplay, WebhookStatus, WebhookTest
from tarry.store.history import Timeline


@dataclass(frozen=True, slots=True)
class LocalOperations:
    """Implements `Operations`; every action is recorded under `actor`."""

    context: OperatorContext
    actor: str
    patience: int = PATIENCE
    """Timeout of requests to the management API for the status, in seconds."""

    def acting_as(self, actor: str) -> LocalOperations:
        return replace(self, actor=actor)

    async def status(self) -> ServiceStatus:
        return await read_status(self.context, patience=self.patience)

    async def activity(self) -> Activity:
        return await overview.activity(self.context)

    async def balance(self) -> BalanceReport:
        return await audit.balance(self.context)

    async def outcomes(self, within: timedelta, *, queue: str | None = None) -> list[AttemptOutcomes]:
        return await audit.outcomes(self.context, within, queue)

    async def verify(
        self, rules: AuditRules, *, since: datetime | None = None, queue: str | None = None
    ) -> VerifyReport:
        return await audit.verify(self.context, rules, since=since, queue=queue)

    async def recover(
        self, rules: AuditRules, *, review: bool = False, execute: bool = False, progress: Progress = no_progress
    ) -> RecoverReport:
        return await audit.recover(
            self.context, rules, review=review, execute=execute, actor=self.actor, progress=progress
        )

    async def write_off(
        self, rules: AuditRules, *, retry_ids: Sequence[str] = (), reason: str, execute: bool = False
    ) -> WriteOffReport:
        return await audit.write_off(
            self.context, rules, retry_ids=retry_ids, reason=reason, execute=execute, actor=self.actor
        )

    async def history(self, called: str) -> list[Timeline]:
        return await lookup.history(self.context.store, called)

    async def list_retries(
        self, wanted: RetryFilter, *, order: Order | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[RetryRow]:
        return await lookup.list_retries(self.context.store, wanted, order=order, limit=limit, cursor=cursor)

    async def show_retry(self, called: str) -> Timeline:
        return await lookup.timeline_of(self.context.store, called)

    async def show_payload(self, called: str) -> StoredPayload:
        return await lookup.payload_of(self.context.store, called)

    async def list_edits(self, called: str) -> list[EditedMessage]:
        return await browse.edits(self.context, called)

    async def cancel(self, called: str, *, reason: str | None = None) -> Diverted:
        return await cancel.cancel(self.context, called, actor=self.actor, reason=reason)

    async def retry_now(self, called: str, *, reason: str | None = None) -> Retried:
        return await retry_now.retry_now(self.context, called, actor=self.actor, reason=reason)

    async def list_stuck(self, *, queue: str | None = None, limit: int = 50) -> list[StuckAttempt]:
        return await stuck.list_stuck(self.context, queue, limit=limit)

    async def recover_stuck(self, wanted: Wanted) -> StuckRecovery:
        return await stuck.recover(self.context, wanted, actor=self.actor)

    async def explain(
        self, messages: Sequence[Mapping[str, Any]], *, queue: str | None = None, ask: bool = False
    ) -> list[Explained]:
        return await self._explainer.explain(messages, queue=queue, ask=ask)

    async def explain_first(self, queue: str, *, ask: bool = False) -> Explained:
        return await self._explainer.explain_first(queue, ask=ask)

    async def policy_schedules(
        self,
        *,
        policy: str | None = None,
        queue: str | None = None,
        priority: str | None = None,
        job_type: str | None = None,
    ) -> list[PolicySchedule]:
        return await self._explainer.policy_schedules(policy=policy, queue=queue, priority=priority, job_type=job_type)

    @property
    def _explainer(self) -> Explainer:
        return Explainer(self.context.topology, self.context.address, self.context.store)

    async def replay_policies(
        self,
        toml: str,
        *,
        since: datetime,
        label: str = "changes",
        most: int = MOST,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> PolicyReplay:
        return await policy_replay.replay_policies(
            self.context, toml, since=since, label=label, most=most, progress=progress
        )

    async def statistics(
        self,
        wanted: StatisticFilter,
        by: Sequence[Dimension] = (),
        *,
        by_time: bool = False,
        limit: int = MOST_STATISTICS,
    ) -> StatisticsReport:
        return await statistics.statistics(self.context, wanted, by, by_time=by_time, limit=limit)

    async def destinations(self, pattern: str = "*") -> list[str]:
        return await pause.known_destinations(self.context, pattern)

    async def destination_numbers(self, pattern: str = "*") -> list[DestinationNumbers]:
        return await overview.destination_numbers(self.context, pattern)

    async def pause(
        self,
        pattern: str = "",
        *,
        scope: Scope = "queue",
        reason: str | None = None,
        lasts: timedelta | None = None,
        at_end: ReleaseOptions | None = None,
    ) -> Paused:
        return await pause.pause(
            self.context, pattern, scope=scope, actor=self.actor, reason=reason, lasts=lasts, at_end=at_end
        )

    async def resume(
        self,
        pattern: str = "",
        *,
        scope: Scope = "queue",
        rate: int = RATE,
        canary: bool = False,
        observe: timedelta = OBSERVE,
    ) -> Resumed:
        return await pause.resume(
            self.context, pattern, scope=scope, actor=self.actor, rate=rate, canary=canary, observe=observe
        )

    async def throttle(
        self, pattern: str, *, rate: int, reason: str | None = None, lasts: timedelta | None = None
    ) -> Throttled:
        return await throttle.throttle(self.context, pattern, rate=rate, actor=self.actor, reason=reason, lasts=lasts)

    async def unthrottle(self, pattern: str, *, reason: str | None = None) -> Unthrottled:
        return await throttle.unthrottle(self.context, pattern, actor=self.actor, reason=reason)

    async def show_pauses(self) -> Pauses:
        return await pause.show_pauses(self.context)

    async def list_breakers(self) -> list[BreakerView]:
        return await breaker.list_breakers(self.context)

    async def open_breaker(
        self, queue: str, *, reason: str | None = None, lasts: timedelta | None = None
    ) -> BreakerView:
        return await breaker.open_breaker(self.context, queue, actor=self.actor, reason=reason, lasts=lasts)

    async def close_breaker(self, queue: str, *, reason: str) -> BreakerView:
        return await breaker.close_breaker(self.context, queue, actor=self.actor, reason=reason)

    async def free_breaker(self, queue: str, *, reason: str | None = None) -> BreakerView:
        return await breaker.free_breaker(self.context, queue, actor=self.actor, reason=reason)

    async def show_intake(self) -> Intake:
        return await intake.read_intake(self.context)

    async def pause_intake(self, *, reason: str | None = None, lasts: timedelta | None = None) -> Intake:
        return await intake.pause_intake(self.context, actor=self.actor, reason=reason, lasts=lasts)

    async def resume_intake(self, *, reason: str | None = None) -> Intake:
        return await intake.resume_intake(self.context, actor=self.actor, reason=reason)

    async def list_budgets(self, *, owner: str | None = None, policy: str | None = None, limit: int = 50) -> BudgetList:
        return await budgets.list_budgets(self.context, owner=owner, policy=policy, limit=limit)

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
        return await budgets.set_budget(
            self.context, owner, policy=policy, limits=limits, actor=self.actor, reason=reason
        )

    async def unset_budget(
        self, owner: str, *, policy: str | None = None, reason: str | None = None
    ) -> OwnerLimitChanged:
        return await budgets.unset_budget(self.context, owner, policy=policy, actor=self.actor, reason=reason)

    async def list_given_up(self, *, queue: str | None = None, limit: int = 50) -> AdaptiveList:
        return await adaptive.list_given_up(self.context, queue=queue, limit=limit)

    async def retry_error(
        self, queue: str, error: str, *, always: bool = False, reason: str | None = None
    ) -> ErrorChoiceChanged:
        return await adaptive.retry_error(self.context, queue, error, always=always, actor=self.actor, reason=reason)

    async def judge_error(self, queue: str, error: str, *, reason: str | None = None) -> ErrorChoiceChanged:
        return await adaptive.judge_error(self.context, queue, error, actor=self.actor, reason=reason)

    async def events(self, wanted: EventFilter) -> AsyncGenerator[StreamedEvent, None]:
        return await read_events(self.context.address, self.context.names, wanted)

    async def list_webhooks(self) -> list[WebhookStatus]:
        return await webhooks.list_webhooks(self.context)

    async def test_webhook(self, name: str) -> WebhookTest:
        return await webhooks.send_test(self.context, name, actor=self.actor)

    async def replay_webhook(
        self,
        name: str,
        *,
        since: datetime,
        everything: bool = False,
        progress: Callable[[int], None] = lambda _: None,
    ) -> WebhookReplay:
        return await webhooks.replay(
            self.context, name, since=since, actor=self.actor, everything=everything, progress=progress
        )

    async def list_actions(
        self,
        *,
        actor: str | None = None,
        kind: str | None = None,
        target: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[ActionRow]:
        return await lookup.latest_actions(
            self.context.store, actor=actor, kind=kind, target=target, limit=limit, cursor=cursor
        )

    async def review_summary(self, chosen: Filter) -> Summary:
        return await browse.summary(self.context, chosen)

    async def review_groups(self, by: By, chosen: Filter, *, limit: int = 50) -> list[Group]:
        return await browse.groups(self.context, by, chosen, limit=limit)

    async def list_review(self, chosen: Filter, *, limit: int = 50, cursor: str | None = None) -> Page[ReviewItem]:
        return await browse.page(self.context, chosen, limit=limit, cursor=cursor)

    async def show_review(self, called: str) -> ReviewDetail:
        return await browse.detail(self.context, called)

    async def review_payload(self, called: str) -> ReviewPayload:
        return await export.payload(self.context, called)

    async def review_ids(self, called: Sequence[str]) -> tuple[str, ...]:
        return await browse.resolve(self.context, called)

    async def check_review(self, *, adopt: bool = False, close: bool = False, remove: bool = False) -> Checked:
        return await reconcile.check_and_repair(
            self.context, actor=self.actor, adopting=adopt, closing=close, removing=remove
        )

    async def export_review(
        self, chosen: Filter, into: Path, *, unknown: bool = False, progress: Callable[[int], None] = lambda _: None
    ) -> Exported:
        return await export.export(self.context, chosen, into, unknown=unknown, progress=progress)

    async def create_job(self, spec: JobSpec, *, here: bool = False) -> JobStatus:
        return (await jobs.create(self.context, spec, actor=self.actor, here=here)).status()

    async def list_jobs(self, *, only_open: bool = False, limit: int = 50) -> list[JobStatus]:
        return [one.status() for one in await jobs.jobs(self.context, only_open=only_open, limit=limit)]

    async def show_job(self, job_id: str) -> JobStatus:
        return (await jobs.get(self.context, job_id)).status()

    async def job_problems(self, job_id: str, *, limit: int = 100) -> list[JobProblem]:
        return await jobs.problems(self.context, job_id, limit=limit)

    async def stop_job(self, job_id: str) -> JobStatus:
        return (await jobs.stop(self.context, job_id, actor=self.actor)).status()

    async def resume_job(self, job_id: str, *, resend_unconfirmed: bool = False, here: bool = False) -> JobStatus:
        found = await jobs.resume(
            self.context, job_id, actor=self.actor, resend_unconfirmed=resend_unconfirmed, here=here
        )
        return found.status()

    async def abandon_job(self, job_id: str) -> JobStatus:
        return (await jobs.abandon(self.context, job_id, actor=self.actor)).status()

    async def work_on_job(self, job_id: str, stop: asyncio.Event) -> JobStatus:
        return (await work_or_wait(self.context, job_id, runner=self.actor, stop=stop)).status()
