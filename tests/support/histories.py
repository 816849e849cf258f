"""Made-up histories, whose truth is known: when each message would have succeeded, whatever the policy."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import psycopg

from tarry.analytics.replay import MessageRow, ReplayStep
from tarry.analytics.rollups import KnownError, Statistic, StatisticCounts, count_new_steps
from tarry.core.decide import Failure, Review, Rulebook, decide
from tarry.core.fingerprint import fingerprint
from tarry.store.database import AdvisoryLock, PostgresSession

DAY_MS = 86_400_000


class Event(NamedTuple):
    """A message that fails for the first time."""

    at_ms: int
    queue: str
    error_type: str
    reason: str
    passes_ms: int | None
    """How long after the first failure attempts begin to succeed; None: never."""
    seed: int


@dataclass
class Lived:
    """What a policy did to the events."""

    rows: list[MessageRow] = field(default_factory=list)
    attempts: int = 0
    succeeded: int = 0
    exhausted: int = 0
    took_ms: list[int] = field(default_factory=list)


TO_FAIL_MS = 400


def events(number: int, *, now_ms: int, days: float = 5, seed: int = 1, queue: str = "orders") -> Iterator[Event]:
    """Errors that pass within minutes, and now and then an outage of an hour."""
    chance = random.Random(seed)
    for _ in range(number):
        at = now_ms - int(chance.uniform(0.5, days) * DAY_MS)
        passes = int(chance.expovariate(1 / 60_000)) if chance.random() < 0.8 else int(chance.uniform(0, 3_600_000))
        yield Event(at, queue, "TimeoutError", "no answer", passes, chance.getrandbits(64))


def useless(number: int, *, now_ms: int, days: float = 5, seed: int = 2, queue: str = "orders") -> Iterator[Event]:
    """An error that never passes."""
    chance = random.Random(seed)
    for _ in range(number):
        at = now_ms - int(chance.uniform(0.5, days) * DAY_MS)
        yield Event(at, queue, "ValueError", "the card was declined", None, chance.getrandbits(64))


def live(found: Iterable[Event], rules: Rulebook) -> Lived:
    """What happens to these events under these rules."""
    lived = Lived()
    for one in found:
        lived.rows.append(_live(one, rules, lived))
    return lived


def _live(event: Event, rules: Rulebook, lived: Lived) -> MessageRow:
    chance = random.Random(event.seed)
    mark = fingerprint(event.error_type, event.reason)
    steps: list[ReplayStep] = []
    now, count, number, most = event.at_ms, 0, 0, 0
    while True:
        number += 1
        failure = Failure(
            event.queue, count, number - 1, event.at_ms, error_type=event.error_type, error_reason=event.reason
        )
        decision = decide(failure, rules, now, chance.random())
        about: dict[str, Any] = {
            "policy": decision.policy.name if decision.policy else None,
            "class": decision.error_class,
        }
        about |= {"fingerprint": mark}
        if isinstance(decision, Review):
            steps.append(ReplayStep(number, "in_review", now, decision.reason, dict(about)))
            lived.exhausted += decision.exhausted
            break
        count, most = decision.retry_count, decision.max_retries
        about |= {"due_ms": decision.due_ms, "delay_ms": decision.itinerary.delay_ms, "attempt": count}
        steps.append(ReplayStep(number, "scheduled", now + 3, None, dict(about)))
        back = decision.due_ms + chance.randrange(20)
        steps.append(ReplayStep(number, "returned", back, None, {"drift_ms": back - decision.due_ms}))
        lived.attempts += 1
        done = back + chance.randrange(TO_FAIL_MS)
        if event.passes_ms is not None and back - event.at_ms >= event.passes_ms:
            steps.append(ReplayStep(number, "succeeded", done, "reported by its consumer", {"at_ms": done}))
            lived.succeeded += 1
            lived.took_ms.append(done - event.at_ms)
            break
        now = done
    retry_id = str(uuid.UUID(int=random.Random(event.seed + 1).getrandbits(128)))
    error = (event.error_type, event.reason, mark)
    return MessageRow(retry_id, event.queue, None, None, None, most or None, *error, event.at_ms, steps)


def statistics_of(rows: Iterable[MessageRow]) -> list[Statistic]:
    """The counts of such a history by day, policy, error and attempt, as the service counts it."""
    found: dict[tuple[datetime, str, str, int], dict[str, Any]] = {}

    def count(at_ms: int, detail: Mapping[str, Any], attempt: int, **numbers: int) -> None:
        key = (_at(at_ms // DAY_MS * DAY_MS), detail["policy"], detail["fingerprint"], attempt)
        place = found.setdefault(key, {})
        for name, number in numbers.items():
            place[name] = place.get(name, 0) + number

    for row in rows:
        begun: ReplayStep | None = None
        for step in row.steps:
            if step.state in ("scheduled", "in_review") and begun is not None:
                count(step.at_ms, begun.detail, begun.detail["attempt"], failed=1)
            match step.state:
                case "scheduled":
                    begun = step
                    count(step.at_ms, step.detail, step.detail["attempt"], scheduled=1)
                case "returned" if begun is not None:
                    count(step.at_ms, begun.detail, begun.detail["attempt"], returned=1)
                case "succeeded" if begun is not None:
                    took = step.at_ms - row.first_failed_ms
                    count(step.at_ms, begun.detail, begun.detail["attempt"], succeeded=1, success_ms=took)
    return [
        Statistic(StatisticCounts(**numbers), starts, policy=policy, error=mark, attempt=attempt)
        for (starts, policy, mark, attempt), numbers in found.items()
    ]


def known_errors(rows: Iterable[MessageRow]) -> dict[str, KnownError]:
    return {
        row.fingerprint: KnownError(row.fingerprint, "retryable", row.error_type, row.error_reason)
        for row in rows
        if row.fingerprint is not None
    }


def store_rows(dsn: str, rows: Sequence[MessageRow]) -> None:
    """Writes them as the service would have."""
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        with cursor.copy(
            "copy retry (id, queue, state, round, returned_round, retry_count, max_retries, policy, error_class, "
            "error_type, error_reason, fingerprint, first_failed_at, updated_at) from stdin"
        ) as copy:
            for row in rows:
                last = row.steps[-1]
                about: Mapping[str, Any] = next(
                    (step.detail for step in reversed(row.steps) if "policy" in step.detail), {}
                )
                returned = max((step.round for step in row.steps if step.state == "returned"), default=0)
                count = max((step.detail.get("attempt", 0) for step in row.steps), default=0)
                state = last.state
                copy.write_row(
                    (
                        *(row.retry_id, row.queue, state, last.round, returned, count, row.max_retries),
                        *(about.get("policy"), about.get("class"), row.error_type, row.error_reason, row.fingerprint),
                        *(_at(row.first_failed_ms), _at(last.at_ms)),
                    )
                )
        with cursor.copy("copy transition (retry_id, round, state, at, actor, reason, detail) from stdin") as copy:
            for row in rows:
                for step in row.steps:
                    actor = "reported" if step.state == "succeeded" else "tarry-test"
                    detail = json.dumps(step.detail)
                    copy.write_row((row.retry_id, step.round, step.state, _at(step.at_ms), actor, step.reason, detail))


def _at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


async def count_statistics(session: PostgresSession) -> None:
    """Counts the whole history, as a service does, until all that is written by now is counted. It waits for a service
    that counts at the same time, and for the transactions of other databases, which hold up this one.
    """
    begun = (await session.rows("statistic_position"))[0][-1]
    while True:
        async with session.lock(AdvisoryLock.STATISTICS) as held:
            if held:
                progress = await count_new_steps(session)
                if progress.before_day is None and progress.counted_until >= begun:
                    return
        await asyncio.sleep(0.1)


RETURNS = """
with one as (
    insert into retry (id, queue, state, round, returned_round, policy, error_class, error_type, error_reason,
                       fingerprint, first_failed_at)
    select gen_random_uuid(), %(queue)s, 'succeeded', 1, 1, %(policy)s, 'retryable', 'TimeoutError', 'no answer',
           'f00d', %(at)s
      from generate_series(1, %(number)s)
    returning id
)
insert into transition (retry_id, round, state, at, actor, detail)
select id, 1, 'scheduled', %(at)s, 'web-1',
       tarry_about(%(policy)s, 'retryable', 'f00d', null, null) || '{"due_ms": 1, "delay_ms": 1, "attempt": 1}'
  from one
 union all
select id, 1, 'returned', %(at)s, 'tap', '{"drift_ms": 1}' from one
 union all
select id, 2, 'scheduled', %(at)s, 'web-1',
       tarry_about(%(policy)s, 'retryable', 'f00d', null, null) || '{"due_ms": 1, "delay_ms": 1, "attempt": 2}'
  from one
 where %(fail)s
"""


def store_returns(dsn: str, at: datetime, *, good: int, bad: int, queue: str = "orders", policy: str = "gold") -> None:
    """Retries that return, and of which the bad ones fail again at once."""
    with psycopg.connect(dsn) as connection:
        for number, fail in ((good, False), (bad, True)):
            about = {"queue": queue, "policy": policy, "at": at, "number": number, "fail": fail}
            connection.execute(RETURNS, about)


def store_usual_days(dsn: str, **about: str) -> None:
    """A week in which a quarter of the returns failed again, at this time of the day."""
    for day in range(1, 8):
        store_returns(dsn, datetime.now(UTC) - timedelta(days=day), good=45, bad=15, **about)
