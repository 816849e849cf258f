"""A history made by SQL: retries of some queues, policies, errors and many owners, with every outcome; and what its
statistics must be, counted one round at a time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

SEEDED = """
create temp table seeded as
select gen_random_uuid() as id, 'queue-' || floor(random() * random() * 20) as queue,
       'policy-' || floor(random() * 4) as policy, 'error-' || floor(random() * random() * 60) as fingerprint,
       'owner-' || floor(power(random(), 3) * %(owners)s) as owner,
       %(since)s::timestamptz + random() * %(seconds)s * interval '1 second' as at,
       1 + floor(random() * random() * 6)::int as rounds, random() as ending, random() as drift
  from generate_series(1, %(retries)s)
"""

RETRIES = """
insert into retry (id, queue, state, round, returned_round, policy, owner, fingerprint, error_type, error_reason,
                   error_class, first_failed_at)
select id, queue, 'succeeded', rounds, rounds, policy, owner, fingerprint, 'Error', 'example of ' || fingerprint,
       'retryable', at
  from seeded
"""

STEPS = """
create temp table steps as
select *, row_number() over (order by written, retry_id, round, state) as place
  from (
select id as retry_id, r as round, 'claimed' as state, at + (r - 1) * interval '10 s' as at, null as reason,
       'web-1' as actor, null::jsonb as detail, at + (r - 1) * interval '10 s' as written
  from seeded, generate_series(1, rounds) as r
 union all
-- A twentieth is recorded late, after the return that it led to.
select id, r, 'scheduled', at + (r - 1) * interval '10 s' + interval '5 ms', null, 'web-1',
       tarry_about(policy, 'retryable', fingerprint, null, owner)
       || jsonb_build_object('tier', 'retry.delay.8s', 'due_ms', 1, 'delay_ms', 8000, 'attempt', r),
       at + (r - 1) * interval '10 s' + case when drift < 0.05 then interval '40 s' else interval '5 ms' end
  from seeded, generate_series(1, rounds) as r
 union all
select id, r, 'returned', at + (r - 1) * interval '10 s' + interval '8 s', null, 'tap',
       jsonb_build_object('drift_ms', floor(drift * 300)), at + (r - 1) * interval '10 s' + interval '8 s'
  from seeded, generate_series(1, rounds) as r
 where r < rounds or ending < 0.95
 union all
-- Presumed, and then failed after all: in a tenth of the rounds that failed again.
select id, r, 'succeeded', at + (r - 1) * interval '10 s' + interval '9 s', null, 'presumed', null,
       at + (r - 1) * interval '10 s' + interval '9 s'
  from seeded, generate_series(1, rounds) as r
 where r < rounds and drift > 0.9
 union all
select id, rounds, 'succeeded', at + rounds * interval '10 s', null,
       case when ending < 0.3 then 'reported' else 'presumed' end,
       case when ending < 0.3
            then jsonb_build_object('attempt', rounds,
                                    'at_ms', floor(extract(epoch from at + rounds * interval '10 s') * 1000)) end,
       at + rounds * interval '10 s'
  from seeded
 where ending < 0.8
 union all
select id, rounds + 1, 'in_review', at + rounds * interval '10 s',
       case when ending < 0.9 then 'exhausted: 5 of 5' else 'final error' end, 'web-1',
       tarry_about(policy, 'retryable', fingerprint, null, owner), at + rounds * interval '10 s'
  from seeded
 where ending between 0.8 and 0.92
 union all
select id, rounds + 1, 'skipped', at + rounds * interval '10 s', 'not wanted', 'web-1',
       tarry_about(policy, 'retryable', fingerprint, null, owner), at + rounds * interval '10 s'
  from seeded
 where ending between 0.92 and 0.95) as step
"""

WRITTEN = """
insert into transition (retry_id, round, state, at, actor, reason, detail)
select retry_id, round, state, at, actor, reason, detail from steps where place > %s and place <= %s order by place
"""


class SeededHistory:
    """A history in temporary tables, from which it is written in the order in which services would."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        retries: int,
        since: datetime,
        seconds: float,
        *,
        owners: int = 100_000,
        seed: float = 0.4711,
    ) -> None:
        self._connection = connection
        connection.execute("select setseed(%s)", (seed,))
        connection.execute(SEEDED, {"retries": retries, "since": since, "seconds": seconds, "owners": owners})
        connection.execute(RETRIES)
        connection.execute(STEPS)
        row = connection.execute("select count(*) from steps").fetchone()
        self.steps: int = row[0] if row else 0
        self.written = 0

    def write(self, number: int | None = None, *, at_once: int = 2_000) -> int:
        """Writes the next steps, all by default, in transactions of `at_once`. Returns how many."""
        before, until = self.written, min(self.steps, self.steps if number is None else self.written + number)
        while self.written < until:
            reached = min(self.written + at_once, until)
            with self._connection.transaction():
                self._connection.execute(WRITTEN, (self.written, reached))
            self.written = reached
        return self.written - before


class Key(NamedTuple):
    """What is counted: in which hour, of what."""

    hour: datetime
    queue: str
    policy: str
    error: str
    owner: str
    attempt: int
    what: str


Steps = list[tuple[str, datetime, str, str | None, Mapping[str, Any]]]


def expected_counts(connection: psycopg.Connection[Any]) -> Counter[Key]:
    """What happened in each hour, counted from all steps, one round at a time."""
    rounds: dict[UUID, dict[int, Steps]] = defaultdict(lambda: defaultdict(list))
    about: dict[UUID, tuple[str, datetime]] = {}
    for retry, queue, first_failed_at, number, *step in connection.execute(
        "select retry_id, coalesce(queue, ''), first_failed_at, transition.round, transition.state, at, actor, reason,"
        "       coalesce(detail, '{}')"
        "  from transition left join retry on retry.id = retry_id"
    ):
        rounds[retry][number].append(tuple(step))
        about[retry] = (queue, first_failed_at)
    found: Counter[Key] = Counter()
    for retry, of_retry in rounds.items():
        queue, first_failed_at = about[retry]
        for what, at, detail, attempt, took in _facts(of_retry):
            hour = at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
            policy, error, owner = (detail.get(name) or "" for name in ("policy", "fingerprint", "owner"))
            key = Key(hour, queue, policy, error, owner, attempt, what)
            found[key] += 1
            if what in ("succeeded", "returned"):
                since = _milliseconds(first_failed_at) if what == "succeeded" else 0
                found[key._replace(what=f"{what}_ms")] += took - since
    return found


def _facts(rounds: Mapping[int, Steps]) -> Iterable[tuple[str, datetime, Mapping[str, Any], int, int]]:
    """What a retry counts, with what its steps say about it."""
    begun = {
        number: next((step for step in sorted(steps, key=_at) if step[0] == "scheduled" and "due_ms" in step[4]), None)
        for number, steps in rounds.items()
    }
    for number, steps in rounds.items():
        first = begun[number]
        detail, attempt = (first[4], first[4]["attempt"]) if first else ({}, 0)
        before = begun.get(number - 1)
        attempt_before = before[4]["attempt"] if before else 0
        by_state = {state: sorted((one for one in steps if one[0] == state), key=_at) for state, *_ in steps}
        if first:
            yield "scheduled", first[1], detail, attempt, 0
        if returned := by_state.get("returned"):
            yield "returned", returned[0][1], detail, attempt, returned[0][4]["drift_ms"]
            yield from _outcome(by_state, rounds.get(number + 1, []), detail, attempt)
        for _, at, _, reason, own in by_state.get("in_review", [])[:1]:
            yield "exhausted" if (reason or "").startswith("exhausted:") else "reviewed", at, own, attempt_before, 0
        for _, at, _, _, own in by_state.get("skipped", [])[:1]:
            yield "skipped", at, own, attempt or attempt_before, 0


def _outcome(
    by_state: Mapping[str, Steps], after: Steps, detail: Mapping[str, Any], attempt: int
) -> Iterable[tuple[str, datetime, Mapping[str, Any], int, int]]:
    again = [one[1] for one in after if one[0] in ("in_review", "skipped") or "due_ms" in one[4]]
    succeeded = by_state.get("succeeded", [])
    reported = [one for one in succeeded if one[2] == "reported"]
    if again:
        yield "failed", min(again), detail, attempt, 0
    elif reported:
        yield "succeeded", reported[0][1], detail, attempt, reported[0][4]["at_ms"]
    elif succeeded:
        ended = _milliseconds(by_state["returned"][0][1])
        yield "succeeded", succeeded[0][1], detail, attempt, ended


def _milliseconds(moment: datetime) -> int:
    return ((moment - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1) + 500) // 1_000


def _at(step: tuple[str, datetime, Any, Any, Any]) -> datetime:
    return step[1]


FIELDS = (
    "scheduled",
    "returned",
    "succeeded",
    "failed",
    "exhausted",
    "reviewed",
    "skipped",
    "succeeded_ms",
    "returned_ms",
)


def by(counts: Counter[Key], span: str, *names: str) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """The counts by hour or day and these parts of the key, without rows of zeros."""
    found: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for key, number in counts.items():
        starts = key.hour.replace(hour=0) if span == "day" else key.hour
        found[(starts, *(getattr(key, name) for name in names))][key.what] += number
    rows = {key: tuple(numbers[one] for one in FIELDS) for key, numbers in found.items()}
    return {key: row for key, row in rows.items() if any(row)}


def stored(
    connection: psycopg.Connection[Any], span: str, kind: str, *, other: bool = False
) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """The same as the service has counted it: (starts, queue, policy, value, attempt) and the numbers."""
    columns = "scheduled, returned, succeeded, failed, exhausted, reviewed, skipped, success_ms, drift_ms"
    rows = connection.execute(
        f"select starts, queue, policy, value, attempt, {columns} from statistic"  # noqa: S608 - names of this file
        " where span = %s and kind = %s and other = %s",
        (span, kind, other),
    ).fetchall()
    return {(row[0].astimezone(UTC), *row[1:5]): tuple(row[5:]) for row in rows if any(row[5:])}
