"""Everything an operator can do. CLI, HTTP API and dashboard call this; nothing else implements a verb."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from tarry.analytics.rollups import Dimension, StatisticFilter
from tarry.audit.status import AttemptOutcomes
from tarry.audit.verify import AuditRules
from tarry.events.stream import EventFilter, StreamedEvent
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
from tarry.operations.review.export import Exported
from tarry.operations.review.jobs import JobProblem, JobSpec, JobStatus
from tarry.operations.review.reconcile import Checked
from tarry.operations.statistics import MOST as MOST_STATISTICS
from tarry.operations.statistics import StatisticsReport
from tarry.operations.status import ServiceStatus
from tarry.operations.stuck import StuckAttempt, StuckRecovery, Wanted
from tarry.operations.throttle import Throttled, Unthrottled
from tarry.operations.webhooks import WebhookReplay, WebhookStatus, WebhookTest
from tarry.store.history import Timeline


class Operations(Protocol):
    """`LocalOperations` uses the broker and Postgres; `RemoteOperations` uses the HTTP API of a service.

    Retries and messages are named by their retry id, the beginning of one, or a message id.
    """

    # The whole installation, and the audit
    async def status(self) -> ServiceStatus: ...
    async def activity(self) -> Activity:
        """What is due in the next hour, what went to review in the last one, and how late recent returns were."""

    async def balance(self) -> BalanceReport: ...
    async def outcomes(self, within: timedelta, *, queue: str | None = None) -> list[AttemptOutcomes]:
        """The outcomes by attempt of the rounds that returned within this time."""

    async def verify(
        self, rules: AuditRules, *, since: datetime | None = None, queue: str | None = None
    ) -> VerifyReport:
        """Compares the store with the broker. `since` and `queue` limit the balance only."""

    async def recover(
        self, rules: AuditRules, *, review: bool = False, execute: bool = False, progress: Progress = no_progress
    ) -> RecoverReport:
        """Publishes missing retries again; with `review`, also everything that was in review. Without `execute`, only
        reports what it would do.
        """

    async def write_off(
        self, rules: AuditRules, *, retry_ids: Sequence[str] = (), reason: str, execute: bool = False
    ) -> WriteOffReport:
        """Closes missing retries: those with these ids, or all that `recover` cannot publish again."""

    # Retries
    async def history(self, called: str) -> list[Timeline]: ...
    async def list_retries(
        self, wanted: RetryFilter, *, order: Order | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[RetryRow]: ...
    async def show_retry(self, called: str) -> Timeline: ...
    async def show_payload(self, called: str) -> StoredPayload: ...
    async def list_edits(self, called: str) -> list[EditedMessage]:
        """How the message was edited when it was redriven, with the originals."""

    async def cancel(self, called: str, *, reason: str | None = None) -> Diverted: ...
    async def retry_now(self, called: str, *, reason: str | None = None) -> Retried:
        """Sends it to its queue now: from its wait, or from review."""

    # Attempts that started and have no outcome
    async def list_stuck(self, *, queue: str | None = None, limit: int = 50) -> list[StuckAttempt]: ...
    async def recover_stuck(self, wanted: Wanted) -> StuckRecovery:
        """Sends them again, or to review. The hung consumer may still finish: possibly a second delivery."""

    # What would become of a message
    async def explain(
        self, messages: Sequence[Mapping[str, Any]], *, queue: str | None = None, ask: bool = False
    ) -> list[Explained]: ...
    async def explain_first(self, queue: str, *, ask: bool = False) -> Explained: ...
    async def policy_schedules(
        self,
        *,
        policy: str | None = None,
        queue: str | None = None,
        priority: str | None = None,
        job_type: str | None = None,
    ) -> list[PolicySchedule]: ...

    # What policies do, and what others would have done
    async def replay_policies(
        self,
        toml: str,
        *,
        since: datetime,
        label: str = "changes",
        most: int = MOST,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> PolicyReplay:
        """Replays the history by policies that are changed as this TOML says; of more messages than `most`, a part.
        `label` names the TOML in errors.
        """

    async def statistics(
        self,
        wanted: StatisticFilter,
        by: Sequence[Dimension] = (),
        *,
        by_time: bool = False,
        limit: int = MOST_STATISTICS,
    ) -> StatisticsReport:
        """What happened in this time, by these dimensions: of more than `limit` values, the largest."""

    # Destinations, pauses and throttles
    async def destinations(self, pattern: str = "*") -> list[str]: ...
    async def destination_numbers(self, pattern: str = "*") -> list[DestinationNumbers]: ...
    async def pause(
        self,
        pattern: str = "",
        *,
        scope: Scope = "queue",
        reason: str | None = None,
        lasts: timedelta | None = None,
        at_end: ReleaseOptions | None = None,
    ) -> Paused:
        """`pattern` is a destination or a glob of them; with another `scope`, the name of a policy or a job type, or
        empty. `at_end` says how messages are released when a pause with a duration expires.
        """

    async def resume(
        self,
        pattern: str = "",
        *,
        scope: Scope = "queue",
        rate: int = RATE,
        canary: bool = False,
        observe: timedelta = OBSERVE,
    ) -> Resumed: ...
    async def throttle(
        self, pattern: str, *, rate: int, reason: str | None = None, lasts: timedelta | None = None
    ) -> Throttled:
        """At most so many returns a second to each destination that matches; the rest is held, in order."""

    async def unthrottle(self, pattern: str, *, reason: str | None = None) -> Unthrottled: ...
    async def show_pauses(self) -> Pauses: ...

    # Circuit breakers
    async def list_breakers(self) -> list[BreakerView]: ...
    async def open_breaker(
        self, queue: str, *, reason: str | None = None, lasts: timedelta | None = None
    ) -> BreakerView:
        """Keeps it open, for a time or until one of the following two."""

    async def close_breaker(self, queue: str, *, reason: str) -> BreakerView:
        """Keeps it closed."""

    async def free_breaker(self, queue: str, *, reason: str | None = None) -> BreakerView:
        """It opens and closes by itself again."""

    # The intake
    async def show_intake(self) -> Intake: ...
    async def pause_intake(self, *, reason: str | None = None, lasts: timedelta | None = None) -> Intake: ...
    async def resume_intake(self, *, reason: str | None = None) -> Intake: ...

    # Budgets
    async def list_budgets(
        self, *, owner: str | None = None, policy: str | None = None, limit: int = 50
    ) -> BudgetList: ...
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
        """Sets an exception of an owner, for one policy or all: what is not given stays as it is."""

    async def unset_budget(
        self, owner: str, *, policy: str | None = None, reason: str | None = None
    ) -> OwnerLimitChanged: ...

    # Decisions from history
    async def list_given_up(self, *, queue: str | None = None, limit: int = 50) -> AdaptiveList:
        """The errors that are given up, and what operators have decided about errors."""

    async def retry_error(
        self, queue: str, error: str, *, always: bool = False, reason: str | None = None
    ) -> ErrorChoiceChanged:
        """Retries an error again; `error` is its fingerprint or the beginning of it. It is judged anew by what happens
        from now on, or with `always` never given up.
        """

    async def judge_error(self, queue: str, error: str, *, reason: str | None = None) -> ErrorChoiceChanged:
        """Judges an error by all of its history again."""

    # Events
    async def events(self, wanted: EventFilter) -> AsyncGenerator[StreamedEvent, None]:
        """Opens the stream and returns an iterator over its events; the caller closes it."""

    # Webhooks
    async def list_webhooks(self) -> list[WebhookStatus]: ...
    async def test_webhook(self, name: str) -> WebhookTest:
        """Sends a signed test event now; a disabled webhook is enabled if its endpoint takes it."""

    async def replay_webhook(
        self,
        name: str,
        *,
        since: datetime,
        everything: bool = False,
        progress: Callable[[int], None] = lambda _: None,
    ) -> WebhookReplay:
        """Puts events from the stream into its queue again, with the same ids; a thousand at most, unless
        `everything` is set.
        """

    # The action log
    async def list_actions(
        self,
        *,
        actor: str | None = None,
        kind: str | None = None,
        target: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[ActionRow]: ...

    # Review
    async def review_summary(self, chosen: Filter) -> Summary: ...
    async def review_groups(self, by: By, chosen: Filter, *, limit: int = 50) -> list[Group]: ...
    async def list_review(self, chosen: Filter, *, limit: int = 50, cursor: str | None = None) -> Page[ReviewItem]: ...
    async def show_review(self, called: str) -> ReviewDetail: ...
    async def review_payload(self, called: str) -> ReviewPayload: ...
    async def review_ids(self, called: Sequence[str]) -> tuple[str, ...]: ...
    async def check_review(self, *, adopt: bool = False, close: bool = False, remove: bool = False) -> Checked:
        """Compares queue and store; optionally adopts what only the queue has, closes what only the store has, and
        removes what interrupted jobs left in the queue.
        """

    async def export_review(
        self, chosen: Filter, into: Path, *, unknown: bool = False, progress: Callable[[int], None] = lambda _: None
    ) -> Exported: ...

    # Review jobs
    async def create_job(self, spec: JobSpec, *, here: bool = False) -> JobStatus:
        """With `here`, the caller works on the job with `work_on_job`; otherwise the service does."""

    async def list_jobs(self, *, only_open: bool = False, limit: int = 50) -> list[JobStatus]: ...
    async def show_job(self, job_id: str) -> JobStatus: ...
    async def job_problems(self, job_id: str, *, limit: int = 100) -> list[JobProblem]: ...
    async def stop_job(self, job_id: str) -> JobStatus: ...
    async def resume_job(self, job_id: str, *, resend_unconfirmed: bool = False, here: bool = False) -> JobStatus: ...
    async def abandon_job(self, job_id: str) -> JobStatus: ...
    async def work_on_job(self, job_id: str, stop: asyncio.Event) -> JobStatus:
        """Returns when the job is done or stopped, or when `stop` is set."""


class ActingOperations(Operations, Protocol):
    """Operations of a caller, whose actions can be recorded under another name."""

    def acting_as(self, actor: str) -> ActingOperations: ...
