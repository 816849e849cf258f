"""`ScopedOperations`: the operations of a token that is limited to some queues.

What the token may not see is not found. Every retry, job and destination is looked up within the scope first, so that
no answer and no error names another one. An operation that cannot be limited is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn

from tarry.analytics.rollups import Dimension, StatisticFilter
from tarry.audit.status import AttemptOutcomes
from tarry.core.id_prefix import SHOWN, as_uuid, fingerprint_range, only, uuid_range
from tarry.core.queue_scope import QueueScope
from tarry.core.states import State
from tarry.errors import AmbiguousIdError, ForbiddenError, MissingOnBrokerError, NotFoundError
from tarry.events.stream import EventFilter, StreamedEvent
from tarry.operations import lookup, overview
from tarry.operations.adaptive import AdaptiveList, ErrorChoiceChanged
from tarry.operations.breaker import BreakerView
from tarry.operations.cancel import DIVERTIBLE, Diverted
from tarry.operations.explain import Explained, PolicySchedule
from tarry.operations.intake import Intake
from tarry.operations.local import LocalOperations
from tarry.operations.lookup import ActionRow, Order, RetryFilter, RetryRow, StoredPayload
from tarry.operations.overview import Activity, DestinationNumbers
from tarry.operations.paging import Page
from tarry.operations.pause import (
    OBSERVE,
    RATE,
    DestinationPause,
    Paused,
    Pauses,
    PauseView,
    ReleaseOptions,
    Resumed,
    Scope,
)
from tarry.operations.retry_now import BY_STATE, Retried
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
from tarry.operations.review.jobs import JobProblem, JobSpec, JobStatus, unknown_job
from tarry.operations.statistics import MOST as MOST_STATISTICS
from tarry.operations.statistics import StatisticsReport
from tarry.operations.status import ServiceStatus, read_scoped_status
from tarry.operations.stuck import StuckAttempt, StuckRecovery, Wanted
from tarry.operations.throttle import Throttled, Unthrottled
from tarry.store.history import Timeline

MOST_JOBS = 1_000
"""The latest jobs, among which those of the scope are found."""

MOST_STUCK = 1_000
"""The longest stuck attempts, among which those of the scope are found."""

MOST_GIVEN_UP = 10_000
"""The latest errors that were given up, among which those of the scope are found."""

MOST_RETRIES = 100
"""The most retries of one message that a history shows."""

WIDER = "(a wider pattern)"
"""Shown instead of the pattern of a pause that also concerns other queues."""


class _Known(NamedTuple):
    retry_id: str
    queue: str
    state: str
    by_message_id: bool


@dataclass(frozen=True, slots=True)
class ScopedOperations:
    """Implements `Operations` for one token."""

    local: LocalOperations
    token: str
    scope: QueueScope

    def acting_as(self, actor: str) -> ScopedOperations:
        return replace(self, local=self.local.acting_as(actor))

    async def status(self) -> ServiceStatus:
        return await read_scoped_status(self.local.context, self.scope, patience=self.local.patience)

    async def activity(self) -> Activity:
        return await overview.activity(self.local.context, self.scope)

    async def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise self._whole_installation()

    balance = verify = recover = write_off = _refuse
    pause_intake = resume_intake = _refuse
    check_review = export_review = _refuse
    list_budgets = set_budget = unset_budget = _refuse
    replay_policies = _refuse
    list_webhooks = test_webhook = replay_webhook = _refuse

    async def outcomes(self, within: timedelta, *, queue: str | None = None) -> list[AttemptOutcomes]:
        if queue is None:
            raise self._whole_installation("Name one of its queues with `queue`.")
        self._check_queue(queue)
        return await self.local.outcomes(within, queue=queue)

    async def history(self, called: str) -> list[Timeline]:
        found = await self._find(called, limit=MOST_RETRIES)
        if not all(one.by_message_id for one in found):
            found = [await self._one(called)]
        return [await self.local.show_retry(one.retry_id) for one in found]

    async def list_retries(
        self, wanted: RetryFilter, *, order: Order | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[RetryRow]:
        return await self.local.list_retries(await self._retries(wanted), order=order, limit=limit, cursor=cursor)

    async def show_retry(self, called: str) -> Timeline:
        return await self.local.show_retry((await self._one(called)).retry_id)

    async def show_payload(self, called: str) -> StoredPayload:
        return await self.local.show_payload((await self._one(called)).retry_id)

    async def list_edits(self, called: str) -> list[EditedMessage]:
        return await self.local.list_edits((await self._one(called)).retry_id)

    async def cancel(self, called: str, *, reason: str | None = None) -> Diverted:
        return await self.local.cancel((await self._one(called, DIVERTIBLE)).retry_id, reason=reason)

    async def retry_now(self, called: str, *, reason: str | None = None) -> Retried:
        return await self.local.retry_now((await self._one(called, BY_STATE)).retry_id, reason=reason)

    async def list_stuck(self, *, queue: str | None = None, limit: int = 50) -> list[StuckAttempt]:
        found = await self.local.list_stuck(queue=queue, limit=MOST_STUCK)
        return [one for one in found if self.scope.allows(one.queue)][:limit]

    async def recover_stuck(self, wanted: Wanted) -> StuckRecovery:
        """By id only: a glob could name more queues than the token may see."""
        if not wanted.ids:
            raise self._whole_installation("Name the retries by their ids.")
        known = [await self._one(called) for called in wanted.ids]
        return await self.local.recover_stuck(replace(wanted, ids=[one.retry_id for one in known]))

    async def explain(
        self, messages: Sequence[Mapping[str, Any]], *, queue: str | None = None, ask: bool = False
    ) -> list[Explained]:
        """No endpoint is asked about messages of other queues, which what is used of budgets may concern too."""
        if queue is not None:
            self._check_queue(queue)
        found = await self.local.explain(messages, queue=queue)
        for one in found:
            self._check_queue(one.queue or "")
        return list(map(_without_use, await self.local.explain(messages, queue=queue, ask=True) if ask else found))

    async def explain_first(self, queue: str, *, ask: bool = False) -> Explained:
        if not self.scope.allows(queue):  # the error of a queue that does not exist
            raise MissingOnBrokerError(f"There is no queue {queue!r} at {self.local.context.address}.")
        return _without_use(await self.local.explain_first(queue, ask=ask))

    async def policy_schedules(
        self,
        *,
        policy: str | None = None,
        queue: str | None = None,
        priority: str | None = None,
        job_type: str | None = None,
    ) -> list[PolicySchedule]:
        if queue is None or policy is not None:
            raise self._whole_installation("Name one of its queues with `queue`, and no policy.")
        self._check_queue(queue)
        return await self.local.policy_schedules(queue=queue, priority=priority, job_type=job_type)

    async def statistics(
        self,
        wanted: StatisticFilter,
        by: Sequence[Dimension] = (),
        *,
        by_time: bool = False,
        limit: int = MOST_STATISTICS,
    ) -> StatisticsReport:
        return await self.local.statistics(replace(wanted, scope=self.scope), by, by_time=by_time, limit=limit)

    async def destinations(self, pattern: str = "*") -> list[str]:
        return [one for one in await self.local.destinations(pattern) if self.scope.allows(one)]

    async def destination_numbers(self, pattern: str = "*") -> list[DestinationNumbers]:
        return await overview.destination_numbers(self.local.context, pattern, self.scope)

    async def pause(
        self,
        pattern: str = "",
        *,
        scope: Scope = "queue",
        reason: str | None = None,
        lasts: timedelta | None = None,
        at_end: ReleaseOptions | None = None,
    ) -> Paused:
        return await self.local.pause(self._target(scope, pattern), reason=reason, lasts=lasts, at_end=at_end)

    async def resume(
        self,
        pattern: str = "",
        *,
        scope: Scope = "queue",
        rate: int = RATE,
        canary: bool = False,
        observe: timedelta = OBSERVE,
    ) -> Resumed:
        return await self.local.resume(self._target(scope, pattern), rate=rate, canary=canary, observe=observe)

    async def throttle(
        self, pattern: str, *, rate: int, reason: str | None = None, lasts: timedelta | None = None
    ) -> Throttled:
        return await self.local.throttle(self._within(pattern), rate=rate, reason=reason, lasts=lasts)

    async def unthrottle(self, pattern: str, *, reason: str | None = None) -> Unthrottled:
        return await self.local.unthrottle(self._within(pattern), reason=reason)

    async def show_pauses(self) -> Pauses:
        found = await self.local.show_pauses()
        paused = [
            self._limited(one)
            for one in found.paused_destinations
            if one.is_destination and self.scope.allows(one.destination)
        ]
        throttles = [one for one in found.throttles if one.pattern is not None and self.scope.covers(one.pattern)]
        return Pauses(paused, [one for one in found.pauses if self._covers(one)], _anonymous(found.intake), throttles)

    async def list_breakers(self) -> list[BreakerView]:
        return [one for one in await self.local.list_breakers() if self.scope.allows(one.queue)]

    async def open_breaker(
        self, queue: str, *, reason: str | None = None, lasts: timedelta | None = None
    ) -> BreakerView:
        return await self.local.open_breaker(self._within(queue), reason=reason, lasts=lasts)

    async def close_breaker(self, queue: str, *, reason: str) -> BreakerView:
        return await self.local.close_breaker(self._within(queue), reason=reason)

    async def free_breaker(self, queue: str, *, reason: str | None = None) -> BreakerView:
        return await self.local.free_breaker(self._within(queue), reason=reason)

    async def list_given_up(self, *, queue: str | None = None, limit: int = 50) -> AdaptiveList:
        found = await self.local.list_given_up(queue=queue, limit=MOST_GIVEN_UP)
        return AdaptiveList(
            [one for one in found.given_up if self.scope.allows(one.queue)][:limit],
            [one for one in found.choices if self.scope.allows(one.queue)][:limit],
            {},
            found.not_applied,
        )

    async def retry_error(
        self, queue: str, error: str, *, always: bool = False, reason: str | None = None
    ) -> ErrorChoiceChanged:
        return await self.local.retry_error(self._within(queue), error, always=always, reason=reason)

    async def judge_error(self, queue: str, error: str, *, reason: str | None = None) -> ErrorChoiceChanged:
        return await self.local.judge_error(self._within(queue), error, reason=reason)

    async def show_intake(self) -> Intake:
        return _anonymous(await self.local.show_intake())

    async def events(self, wanted: EventFilter) -> AsyncGenerator[StreamedEvent, None]:
        return await self.local.events(replace(wanted, scope=self.scope))

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
            self.local.context.store,
            actor=actor,
            kind=kind,
            target=target,
            limit=limit,
            cursor=cursor,
            scope=self.scope,
        )

    async def review_summary(self, chosen: Filter) -> Summary:
        return await self.local.review_summary(await self._filter(chosen))

    async def review_groups(self, by: By, chosen: Filter, *, limit: int = 50) -> list[Group]:
        return await self.local.review_groups(by, await self._filter(chosen), limit=limit)

    async def list_review(self, chosen: Filter, *, limit: int = 50, cursor: str | None = None) -> Page[ReviewItem]:
        return await self.local.list_review(await self._filter(chosen), limit=limit, cursor=cursor)

    async def show_review(self, called: str) -> ReviewDetail:
        return await self.local.show_review(await self._in_review(called))

    async def review_payload(self, called: str) -> ReviewPayload:
        return await self.local.review_payload(await self._in_review(called))

    async def review_ids(self, called: Sequence[str]) -> tuple[str, ...]:
        return await self.local.review_ids([await self._in_review(one) for one in called])

    async def create_job(self, spec: JobSpec, *, here: bool = False) -> JobStatus:
        if spec.options.to is not None:
            self._check_queue(spec.options.to)
        limited = replace(spec, chosen=await self._filter(spec.chosen))
        if spec.retries is not None:
            limited = replace(spec, retries=await self._retries(spec.retries))
        return await self.local.create_job(limited, here=here)

    async def list_jobs(self, *, only_open: bool = False, limit: int = 50) -> list[JobStatus]:
        found = await self.local.list_jobs(only_open=only_open, limit=MOST_JOBS)
        return [one for one in found if self._may_see(one)][:limit]

    async def show_job(self, job_id: str) -> JobStatus:
        return await self._job(job_id)

    async def job_problems(self, job_id: str, *, limit: int = 100) -> list[JobProblem]:
        return await self.local.job_problems((await self._job(job_id)).id, limit=limit)

    async def stop_job(self, job_id: str) -> JobStatus:
        return await self.local.stop_job((await self._job(job_id)).id)

    async def resume_job(self, job_id: str, *, resend_unconfirmed: bool = False, here: bool = False) -> JobStatus:
        found = await self._job(job_id)
        return await self.local.resume_job(found.id, resend_unconfirmed=resend_unconfirmed, here=here)

    async def abandon_job(self, job_id: str) -> JobStatus:
        return await self.local.abandon_job((await self._job(job_id)).id)

    async def work_on_job(self, job_id: str, stop: asyncio.Event) -> JobStatus:
        return await self.local.work_on_job((await self._job(job_id)).id, stop)

    async def _find(self, called: str, *, limit: int) -> list[_Known]:
        low, high, _ = uuid_range(called) or (None, None, None)
        rows = await self.local.context.store.rows(
            "retries_in_scope",
            called=called,
            id=as_uuid(called),
            low=low,
            high=high,
            scope=self.scope.likes(),
            limit=limit,
        )
        if not rows:
            raise lookup.unknown(called)
        return [_Known(*row) for row in rows]

    async def _one(self, called: str, states: Collection[str] | None = None) -> _Known:
        """The only retry; of several of one message, the only one in one of these states."""
        found = await self._find(called, limit=SHOWN + 1)
        suitable = [one for one in found if states is None or one.state in states]
        if len(suitable) > 1:
            listed = ", ".join(f"{one.retry_id} ({one.queue}, {one.state})" for one in suitable[:SHOWN])
            raise AmbiguousIdError(f"{called!r} matches more than one retry: {listed}. Name one of them.")
        return suitable[0] if suitable else found[-1]

    async def _in_review(self, called: str) -> str:
        return (await self._one(called, {State.IN_REVIEW})).retry_id

    async def _fingerprint(self, text: str | None) -> str | None:
        """Complete, so that it is not compared with those of other queues."""
        bounds = fingerprint_range(text or "")
        if text is None or bounds is None:
            return text
        rows = await self.local.context.store.rows(
            "fingerprints_in_scope", low=bounds.low, high=bounds.high, scope=self.scope.likes(), limit=SHOWN + 1
        )
        return only(text, [(row[0], row[1]) for row in rows]) or bounds.low

    async def _filter(self, chosen: Filter) -> Filter:
        return replace(chosen, scope=self.scope, fingerprint=await self._fingerprint(chosen.fingerprint))

    async def _retries(self, wanted: RetryFilter) -> RetryFilter:
        return replace(wanted, scope=self.scope, fingerprint=await self._fingerprint(wanted.fingerprint))

    async def _job(self, called: str) -> JobStatus:
        bounds = uuid_range(called)
        if bounds is not None:
            jobs = [(one.id, one.kind) for one in await self.list_jobs(limit=MOST_JOBS)]
            called = only(called, [one for one in jobs if bounds.low <= one[0] <= bounds.high]) or called
        if as_uuid(called) is None:
            raise unknown_job(called)
        found = await self.local.show_job(called)
        if not self._may_see(found):
            raise unknown_job(called)
        return found

    def _may_see(self, job: JobStatus) -> bool:
        """Whether all messages of the job are in the scope, by the filter that it was created with."""
        queue, to = job.filter.get("queue"), job.options.get("to")
        patterns = job.filter.get("scope") or ([] if queue is None else [queue])
        return bool(patterns) and all(map(self.scope.covers, patterns)) and (to is None or self.scope.allows(to))

    def _within(self, pattern: str) -> str:
        """The pattern, if it is within the scope."""
        if self.scope.covers(pattern):
            return pattern
        if any(one in pattern for one in "*?["):
            raise ForbiddenError(
                f"The token {self.token!r} is limited to {self.scope}, and {pattern!r} can match other queues: name a "
                "queue, or use a glob within these."
            )
        raise NotFoundError(f"No destination is called {pattern!r}: see GET /queues.")

    def _check_queue(self, queue: str) -> None:
        if not self.scope.allows(queue):
            raise NotFoundError(f"No destination is called {queue!r}: see GET /queues.")

    def _target(self, scope: Scope, pattern: str) -> str:
        if scope != "queue":
            raise self._whole_installation("Name one of its queues.")
        return self._within(pattern)

    def _covers(self, pause: PauseView) -> bool:
        return pause.scope in ("queue", "breaker") and self.scope.covers(pause.pattern)

    def _limited(self, paused: DestinationPause) -> DestinationPause:
        """Without the words of pauses that also concern other queues."""
        views = [
            one if self._covers(one) else PauseView(WIDER, one.actor, None, one.at, one.until) for one in paused.pauses
        ]
        throttles = [
            one if one.pattern is None or self.scope.covers(one.pattern) else replace(one, pattern=WIDER, reason=None)
            for one in paused.throttles
        ]
        return replace(paused, pauses=views, throttles=throttles)

    def _whole_installation(self, what_to_do: str = "Use a token without that limit.") -> ForbiddenError:
        return whole_installation(self.token, self.scope, what_to_do)


def whole_installation(
    token: str, scope: QueueScope, what_to_do: str = "Use a token without that limit."
) -> ForbiddenError:
    return ForbiddenError(f"The token {token!r} is limited to {scope}, and this concerns all queues. {what_to_do}")


def _without_use(explained: Explained) -> Explained:
    return replace(explained, budgets=[replace(one, used=None) for one in explained.budgets])


def _anonymous(intake: Intake) -> Intake:
    """Without who and why, which may concern other queues."""
    return Intake(intake.paused, at=intake.at)
