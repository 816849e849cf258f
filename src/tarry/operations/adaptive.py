"""Decisions from history: which errors are given up, and what operators can do about it. The rules are in
`core.adaptive`; the statistics are those of `analytics.rollups`.

The service judges whenever more of the history has been counted, and stores the errors that it gives up. Routers read
them at intervals, and decide without waiting for Postgres.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import structlog

from tarry.analytics.rollups import (
    LATE,
    Dimension,
    StatisticFilter,
    StatisticSpan,
    StatisticsProgress,
    read_progress,
    read_statistics,
)
from tarry.core.adaptive import (
    NOTHING_GIVEN_UP,
    Adaptive,
    AdaptiveFinding,
    ErrorKey,
    ErrorOutcomes,
    ErrorsGivenUp,
    Evidence,
    Judgement,
    judge,
    reason_of,
)
from tarry.core.decide import Failure
from tarry.core.fingerprint import fingerprint
from tarry.core.id_prefix import SHOWN, fingerprint_range, only
from tarry.core.json_types import DOCUMENTED
from tarry.core.policy import Policy
from tarry.core.share_field import format_share
from tarry.errors import AuditError, NotFoundError
from tarry.operations.action_log import recorded
from tarry.operations.context import OperatorContext
from tarry.store.database import AdvisoryLock, PostgresPool
from tarry.tasks import now_and_then
from tarry.topology.model import Topology

log = structlog.get_logger()

EVERY = 2.0
"""Seconds between two looks for what is given up."""

VALID_MS = 60_000
"""What was read last applies for this long. Then a router without Postgres retries everything."""

BY_HOUR = timedelta(days=1)
"""Outcomes of the day before today, and later ones, are judged by hour, and earlier ones by day."""

FORGOTTEN = timedelta(days=91)
"""More than any policy looks back."""

MOST = 100_000

GIVEN_UP = "error given up"
RETRIED = "error retried again"
NOT_APPLIED = "decisions from history are not applied"
APPLIED_AGAIN = "decisions from history are applied again"

NOT_ENOUGH = "too few of its retries, or none any more, say that it should be given up"


@dataclass(frozen=True, slots=True)
class GivenUp:
    """An error whose messages go to review at once."""

    __pydantic_config__ = DOCUMENTED

    queue: str
    policy: str
    error: str
    """Its fingerprint."""
    error_type: str | None
    example: str | None
    """The reason of one such error."""
    since: datetime
    """When it was given up."""
    reason: str
    """The reason with which its messages go to review."""
    succeeded: int
    """Retries that had succeeded when it was given up."""
    failed: int
    """Retries that had failed again."""
    evidence_since: datetime
    """When the hour or day of the earliest of these retries began."""


@dataclass(frozen=True, slots=True)
class ErrorChoice:
    """What an operator has decided about an error."""

    __pydantic_config__ = DOCUMENTED

    queue: str
    error: str
    """Its fingerprint."""
    error_type: str | None
    example: str | None
    always: bool
    """Whether it is never given up; otherwise what happened before `at` is forgotten, and it is judged anew."""
    actor: str
    reason: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class AdaptiveList:
    """What is given up, and what operators have decided about errors; the latest first."""

    __pydantic_config__ = DOCUMENTED

    given_up: list[GivenUp]
    choices: list[ErrorChoice]
    policies: dict[str, str]
    """The policies that decide from history, and when they give up an error."""
    not_applied: str | None
    """Why nothing is given up now, although it is listed; null if all is in order."""


@dataclass(frozen=True, slots=True)
class ErrorChoiceChanged:
    """The result of a decision about an error."""

    __pydantic_config__ = DOCUMENTED

    choice: ErrorChoice
    """As it is now; if it was removed, as it was."""
    retried: list[str]
    """The policies under which it was given up until now."""
    without_effect: bool
    """Whether no policy of the queue decides from history."""
    action_id: str


class StatisticsState(NamedTuple):
    """How far the history has been counted, and why that is not enough."""

    counted_until: datetime | None
    problem: str | None


async def read_state(store: PostgresPool) -> StatisticsState:
    progress = await read_progress(store)
    return StatisticsState(None if progress is None else progress.counted_until, _problem(progress))


def _problem(progress: StatisticsProgress | None) -> str | None:
    if progress is None:
        return "the history has not been counted yet"
    if datetime.now(UTC) - progress.counted_until > LATE:
        return f"steps since {progress.counted_until:%Y-%m-%d %H:%M} UTC are not counted yet"
    return None


async def list_given_up(context: OperatorContext, *, queue: str | None = None, limit: int = 50) -> AdaptiveList:
    """Of one queue or all."""
    rules = adaptive_policies(context)
    rows = await context.store.rows("given_up_errors", queue=queue, fingerprint=None, limit=limit)
    state = await read_state(context.store) if rules else StatisticsState(None, None)
    return AdaptiveList(
        [GivenUp(*row) for row in rows],
        await _choices(context.store, queue, limit=limit),
        {policy.name: rule.describe() for policy, rule in rules},
        state.problem,
    )


async def retry_error(
    context: OperatorContext, queue: str, error: str, *, always: bool = False, actor: str, reason: str | None
) -> ErrorChoiceChanged:
    """Retries an error again, at once. It is judged anew, or with `always` never given up."""
    mark = await _whole(context, queue, error)
    detail = {"error": mark, "always": always, "reason": reason}
    async with recorded(context.store, kind="retry_error", target=queue, actor=actor, detail=detail) as action:
        async with context.store.transaction() as page:
            row = await page.one(
                "set_error_choice", queue=queue, fingerprint=mark, always=always, actor=actor, reason=reason
            )
            rows = await page.rows("retry_given_up_error", queue=queue, fingerprint=mark, policy=None)
        choice, retried = ErrorChoice(*(row or ())), sorted(one[0] for one in rows)
        answer = ErrorChoiceChanged(choice, retried, _is_without_effect(context, queue), action.id)
        action.outcome = asdict(answer)
    return answer


async def judge_error(
    context: OperatorContext, queue: str, error: str, *, actor: str, reason: str | None
) -> ErrorChoiceChanged:
    """Judges an error by all of its history again."""
    mark = await _whole(context, queue, error)
    detail = {"error": mark, "reason": reason}
    async with recorded(context.store, kind="judge_error", target=queue, actor=actor, detail=detail) as action:
        row = await context.store.one("unset_error_choice", queue=queue, fingerprint=mark)
        if row is None:
            raise NotFoundError(f"Nothing is decided about error {mark} in queue {queue!r}: see `tarry adaptive`.")
        answer = ErrorChoiceChanged(ErrorChoice(*row), [], _is_without_effect(context, queue), action.id)
        action.outcome = asdict(answer)
    return answer


async def _whole(context: OperatorContext, queue: str, error: str) -> str:
    """The fingerprint of an error of this queue that begins so."""
    bounds = fingerprint_range(error)
    low, high = (bounds.low, bounds.high) if bounds is not None else (error, error)
    rows = await context.store.rows("errors_of_queue", queue=queue, low=low, high=high, limit=SHOWN + 1)
    found = only(error, [(row[0], row[1] or "") for row in rows])
    if found is None:
        raise NotFoundError(
            f"Queue {queue!r} has no error with the fingerprint {error!r}: see `tarry adaptive`, or `tarry review "
            "groups --by fingerprint`."
        )
    return found


async def _choices(store: PostgresPool, queue: str | None = None, *, limit: int = MOST) -> list[ErrorChoice]:
    return [ErrorChoice(*row) for row in await store.rows("error_choices", queue=queue, limit=limit)]


async def _choice(store: PostgresPool, queue: str, mark: str) -> ErrorChoice | None:
    return next((one for one in await _choices(store, queue) if one.error == mark), None)


def adaptive_policies(context: OperatorContext) -> list[tuple[Policy, Adaptive]]:
    """The policies that decide from history; none while the files have errors."""
    policies = context.files.rules.policies if isinstance(context.files, Topology) else ()
    return [(policy, policy.adaptive) for policy in policies if policy.adaptive is not None]


def _is_without_effect(context: OperatorContext, queue: str) -> bool:
    if not isinstance(context.files, Topology):
        return False
    return all(policy.adaptive is None for policy in context.files.rules.policies_of_queue(queue))


History = dict[tuple[str, str], list[ErrorOutcomes]]
"""The outcomes of each error, by queue and fingerprint, the latest first."""


async def read_history(
    store: PostgresPool,
    policy: str,
    rule: Adaptive,
    now: datetime,
    *,
    queue: str | None = None,
    error: str | None = None,
) -> History:
    """Of one policy, within the time that counts. What has no row of its own in the statistics is not known."""
    since = now - timedelta(milliseconds=rule.within)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    hours_from = max(since, today - BY_HOUR)
    found: History = {}
    for span, begins, ends in ((StatisticSpan.HOUR, hours_from, now), (StatisticSpan.DAY, since, today - BY_HOUR)):
        if begins >= ends:
            continue
        wanted = StatisticFilter(begins, ends, span, queue=queue, policy=policy, error=error)
        rows = await read_statistics(store, wanted, (Dimension.QUEUE, Dimension.ERROR), by_time=True)
        for row in reversed(rows):
            if not row.other and row.starts is not None and row.queue is not None and row.error:
                counts, ends_at = row.counts, row.starts + span.length
                found.setdefault((row.queue, row.error), []).append(
                    ErrorOutcomes(_ms(row.starts), _ms(ends_at), counts.returned, counts.succeeded, counts.failed)
                )
    return found


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


async def explain_error(
    store: PostgresPool, policy: Policy, rule: Adaptive, failure: Failure
) -> tuple[ErrorsGivenUp, str]:
    """Whether this error is given up now, and what its history says."""
    mark, now = fingerprint(failure.error_type, failure.error_reason), datetime.now(UTC)
    if mark is None:
        return NOTHING_GIVEN_UP, "not given up: nothing is known about the error"
    try:
        state = await read_state(store)
        rows = await store.rows("given_up_errors", queue=failure.queue, fingerprint=mark, limit=MOST)
        choice = await _choice(store, failure.queue, mark)
        history = await read_history(store, policy.name, rule, now, queue=failure.queue, error=mark)
    except AuditError as error:
        return NOTHING_GIVEN_UP, f"not applied: {error}"
    if state.problem is not None:
        return NOTHING_GIVEN_UP, f"not applied: {state.problem}"
    found = next((one for one in (GivenUp(*row) for row in rows) if one.policy == policy.name), None)
    if found is not None:
        given_up = ErrorsGivenUp({ErrorKey(failure.queue, policy.name, mark): found.reason}, _now_ms() + VALID_MS)
        tried = format_share(rule.still_tried)
        return given_up, f"given up since {found.since:%Y-%m-%d %H:%M} UTC; {tried} of the messages are still tried"
    judgement = judged(rule, history.get((failure.queue, mark), []), choice)
    if judgement is None:
        return NOTHING_GIVEN_UP, f"never given up: {choice.actor if choice else ''} has decided so"
    if judgement.finding is AdaptiveFinding.GIVEN_UP:
        return NOTHING_GIVEN_UP, f"about to be {judgement.describe(rule)}"
    return NOTHING_GIVEN_UP, judgement.describe(rule)


def judged(rule: Adaptive, outcomes: list[ErrorOutcomes], choice: ErrorChoice | None) -> Judgement | None:
    """What the outcomes say; None if an operator has decided that the error is never given up. What began before an
    operator retried it does not count.
    """
    if choice is not None and choice.always:
        return None
    after = 0 if choice is None else _ms(choice.at)
    return judge(rule, [one for one in outcomes if one.starts_ms >= after])


@dataclass(slots=True)
class AdaptiveDecisions:
    """What is given up, as one service knows it. It is one of the background tasks, and judges if no other service
    does.
    """

    context: OperatorContext
    current: ErrorsGivenUp = NOTHING_GIVEN_UP
    problem: str | None = None
    """Why the statistics are not enough."""
    _judged: object = None
    """What the last judgement was about: with the same, it would be the same."""
    _applied: bool = True

    def __call__(self) -> ErrorsGivenUp:
        return self.current

    @property
    def troubles(self) -> list[str]:
        """For health checks."""
        names = ", ".join(policy.name for policy, _ in adaptive_policies(self.context))
        if not names or (self.problem is None and _now_ms() <= self.current.until_ms):
            return []
        why = self.problem or "Postgres did not say which errors are given up"
        return [f"{NOT_APPLIED}, retries of {names} are scheduled without them: {why}"]

    async def run(self, stop: asyncio.Event, *, every: float = EVERY) -> None:
        await now_and_then("decisions from history", self.look, stop, every)

    async def look(self) -> None:
        """Judges if more has been counted, and reads what is given up."""
        rules, store = adaptive_policies(self.context), self.context.store
        if not rules and self._judged == ():
            return
        state = await read_state(store) if rules else StatisticsState(None, None)
        self.problem = state.problem
        if state.problem is None:
            await self._judge(rules, state.counted_until)
        self._report()
        applies = rules and state.problem is None
        self.current = await self._read() if applies else NOTHING_GIVEN_UP

    async def _read(self) -> ErrorsGivenUp:
        until = _now_ms() + VALID_MS
        rows = await self.context.store.rows("given_up_errors", queue=None, fingerprint=None, limit=MOST)
        found = [GivenUp(*row) for row in rows]
        return ErrorsGivenUp({ErrorKey(one.queue, one.policy, one.error): one.reason for one in found}, until)

    async def _judge(self, rules: list[tuple[Policy, Adaptive]], counted_until: datetime | None) -> None:
        """If another service judges at this moment, it does so with the same result."""
        choices = await _choices(self.context.store) if rules else []
        about: object = (counted_until, rules, choices) if rules else ()
        if about == self._judged:
            return
        async with self.context.store.lock(AdvisoryLock.ADAPTIVE) as held:
            if held is None:
                return
            await self.context.store.change("forget_error_choices", older_than=FORGOTTEN)
            await self._store(await self._wanted(rules, choices), choices)
        self._judged = about

    async def _wanted(
        self, rules: list[tuple[Policy, Adaptive]], choices: list[ErrorChoice]
    ) -> dict[ErrorKey, tuple[Adaptive, Evidence]]:
        """The errors to give up."""
        now, found = datetime.now(UTC), {}
        chosen = {(one.queue, one.error): one for one in choices}
        for policy, rule in rules:
            for (queue, error), outcomes in (await read_history(self.context.store, policy.name, rule, now)).items():
                judgement = judged(rule, outcomes, chosen.get((queue, error)))
                if judgement is not None and judgement.finding is AdaptiveFinding.GIVEN_UP:
                    found[ErrorKey(queue, policy.name, error)] = rule, judgement.evidence
        return found

    async def _store(self, wanted: Mapping[ErrorKey, tuple[Adaptive, Evidence]], choices: list[ErrorChoice]) -> None:
        """Stores what has changed. An error that stays given up keeps its evidence, and so its reason."""
        rows = await self.context.store.rows("given_up_errors", queue=None, fingerprint=None, limit=MOST)
        stored = {ErrorKey(*row[:3]) for row in rows}
        read_at = max((one.at for one in choices), default=datetime.fromtimestamp(0, UTC))
        for key in sorted(wanted.keys() - stored):
            rule, evidence = wanted[key]
            await self._give_up(key, reason_of(rule, evidence), evidence, read_at)
        for key in sorted(stored - wanted.keys()):
            await self._retry(key)

    async def _give_up(self, key: ErrorKey, reason: str, evidence: Evidence, read_at: datetime) -> None:
        detail = {"error": key.fingerprint, "policy": key.policy, "why": reason}
        async with recorded(
            self.context.store, kind="error_given_up", target=key.queue, actor=self.context.actor, detail=detail
        ):
            await self.context.store.change(
                "give_up_error",
                **key._asdict(),
                reason=reason,
                succeeded=evidence.succeeded,
                failed=evidence.failed,
                since_ms=evidence.since_ms,
                read_at=read_at,
            )
        log.warning(GIVEN_UP, queue=key.queue, policy=key.policy, error=key.fingerprint, reason=reason)

    async def _retry(self, key: ErrorKey) -> None:
        detail = {"error": key.fingerprint, "policy": key.policy, "why": NOT_ENOUGH}
        async with recorded(
            self.context.store, kind="error_retried", target=key.queue, actor=self.context.actor, detail=detail
        ):
            await self.context.store.rows("retry_given_up_error", **key._asdict())
        log.info(RETRIED, queue=key.queue, policy=key.policy, error=key.fingerprint, reason=NOT_ENOUGH)

    def _report(self) -> None:
        """Logs each change."""
        if self._applied and self.problem is not None:
            log.warning(NOT_APPLIED, why=self.problem)
        elif not self._applied and self.problem is None:
            log.info(APPLIED_AGAIN)
        self._applied = self.problem is None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
