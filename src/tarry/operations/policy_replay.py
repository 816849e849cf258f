"""What changed policies would have done to the messages of the history, beside what the policies did as they are."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tarry.analytics.replay import (
    Ended,
    Loads,
    MessageHistory,
    MessageRow,
    Replay,
    ReplayStep,
    ReplayTally,
    ReplayTotals,
    message_history,
)
from tarry.core.decide import Rulebook
from tarry.core.durations import humanise
from tarry.core.json_types import DOCUMENTED
from tarry.core.policy import Policy
from tarry.errors import NotFoundError, SettingsError
from tarry.operations.context import OperatorContext
from tarry.store.database import PostgresSession, Row, SessionSettings
from tarry.tasks import in_thread
from tarry.topology.load import with_changes
from tarry.topology.model import Topology

MOST = 100_000
"""Messages that are replayed by default; of more, a part that is chosen by chance."""

SLICE = 500
"""Messages that are read at a time."""

MOST_DESTINATIONS = 20

ASSUMPTIONS = (
    (
        "An attempt that never happened has no outcome. Up to the last attempt of its message that failed it counts as "
        "failed, from the first that succeeded as succeeded: both only if an error that has passed stays away."
    ),
    (
        "Between the two, the estimate is the share of that time which had gone by. After the last attempt of a "
        "message that never succeeded, it is how often attempts with its error succeeded after about the same time. "
        "The bounds are: all of these fail, or all of them succeed."
    ),
    (
        "More or fewer attempts do not change how the destination fares: if it failed because it was overloaded, this "
        "does not show."
    ),
    (
        "Pauses, breakers and throttles, budgets, eligibility and decisions from history count as they were. A new "
        "rule of that kind is not replayed."
    ),
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure that is not known exactly."""

    __pydantic_config__ = DOCUMENTED

    value: float
    low: float
    """If every attempt that never happened had failed; or succeeded, if that is less."""
    high: float
    """The other of the two."""


@dataclass(frozen=True, slots=True)
class ReplayFigures:
    """What became of some messages. In the history all figures are exact: value, low and high are the same."""

    __pydantic_config__ = DOCUMENTED

    attempts: Estimate
    """Returns to the destinations."""
    succeeded: Estimate
    exhausted: Estimate
    """In review because their retries were used up."""
    final: Estimate
    """In review because of a final error."""
    reviewed: Estimate
    """In review for another reason."""
    skipped: Estimate
    open: Estimate
    """Not at an end by the end of the time."""
    success_mean_ms: Estimate | None
    """From the first failure to the success; null if none succeeded."""
    success_p50_ms: Estimate | None
    success_p95_ms: Estimate | None
    peak_per_minute: float
    """The most returns in one minute, estimated."""


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """The messages of one policy, or all messages, three times."""

    __pydantic_config__ = DOCUMENTED

    policy: str | None
    """The policy that applies to them now; null: all messages. Empty: no policy matches them."""
    messages: int
    history: ReplayFigures
    """As it was."""
    current: ReplayFigures
    """Replayed by the policies as they are: how far it is from `history` is how far a replay can be trusted."""
    changed: ReplayFigures
    """Replayed by the changed policies."""


@dataclass(frozen=True, slots=True)
class DestinationLoad:
    """The most returns to a destination in one minute."""

    __pydantic_config__ = DOCUMENTED

    queue: str
    history: float
    current: float
    changed: float


@dataclass(frozen=True, slots=True)
class PolicyReplay:
    """A replay of the history."""

    __pydantic_config__ = DOCUMENTED

    since: datetime
    until: datetime
    messages: int
    """Replayed."""
    share: float
    """Which part of all messages that is. Figures are of all messages: those of the part, divided by this."""
    left_out: int
    """Messages that an operator or a repair touched, or whose beginning is deleted; in the part that was read."""
    error_percent: float
    """By how much the policies as they are miss the history, at most, in attempts, succeeded and exhausted."""
    changes: list[str]
    """What is different in the changed policies."""
    policies: list[ReplayRow]
    total: ReplayRow
    destinations: list[DestinationLoad]
    """Those with the highest peaks first."""
    assumptions: list[str]
    """What a replay cannot know, and how it estimates it."""


async def replay_policies(
    context: OperatorContext,
    toml: str,
    *,
    since: datetime,
    label: str = "changes",
    most: int = MOST,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> PolicyReplay:
    """Reads the messages that first failed since then twice: for how often attempts succeed, then to replay them."""
    topology = context.topology
    changed = with_changes(topology, toml, label)
    until = datetime.now(UTC)
    if since >= until:
        raise SettingsError("The time to replay begins in the future: give a time that has passed, as in --since 7d.")
    reader = _HistoryReader(context, topology.rules, since, until)
    run = Replay(topology.rules, changed.rules, _ms(since), _ms(until))
    async with context.store.dedicated(SessionSettings.REPORT) as session:
        await reader.begin(session, most)
        for step in (run.learn, run.add):
            await reader.read(session, step, progress)
    if not run.total.messages:
        raise NotFoundError(
            f"Nothing to replay: no message that can be replayed first failed since {since:%Y-%m-%d %H:%M} UTC "
            f"({reader.left_out} were left out)."
        )
    return _report(run, reader, since, until, list(_changes(topology, changed)))


class _HistoryReader:
    """Reads the history in slices of ids, which are random: any number of slices is a sample."""

    def __init__(self, context: OperatorContext, rules: Rulebook, since: datetime, until: datetime) -> None:
        self._context, self._rules = context, rules
        self._times = {"since": since, "until": until}
        self._errors: dict[tuple[str, str], tuple[str | None, str | None]] = {}
        self._asked: set[str] = set()
        self._slices, self._wanted, self._done = 1, 1, 0
        self.left_out = 0

    @property
    def share(self) -> float:
        return self._wanted / self._slices

    async def begin(self, session: PostgresSession, most: int) -> None:
        row = await session.one("replay_count", **self._times)
        number = int(row[0]) if row else 0
        self._slices = max(1, math.ceil(number / SLICE))
        self._wanted = max(1, min(self._slices, most // SLICE))

    async def read(
        self,
        session: PostgresSession,
        use: Callable[[Sequence[MessageHistory]], None],
        progress: Callable[[int, int], None],
    ) -> None:
        self.left_out = 0
        for place in range(self._wanted):
            low, high = (2**128 * (place + end) // self._slices - end for end in (0, 1))
            rows = await session.rows(
                "replay_messages", low=uuid.UUID(int=low), high=uuid.UUID(int=high), **self._times
            )
            messages = [_message(row) for row in rows]
            await self._look_up(session, messages)

            def work(messages: Sequence[MessageRow] = messages) -> None:
                found = [message_history(one, self._rules, self._known) for one in messages]
                plain = [one for one in found if one is not None]
                self.left_out += len(found) - len(plain)
                use(plain)

            await in_thread(work, "replay")
            self._done += 1
            progress(self._done, 2 * self._wanted)

    async def _look_up(self, session: PostgresSession, messages: Sequence[MessageRow]) -> None:
        """What earlier errors of the messages were: only the latest one is stored with a message."""
        wanted = {mark for one in messages for step in one.steps if (mark := step.detail.get("fingerprint"))}
        if new := wanted - self._asked:
            self._asked |= new
            for queue, mark, error_type, reason in await session.rows("replay_errors", fingerprints=sorted(new)):
                self._errors[queue, mark] = error_type, reason

    def _known(self, queue: str, mark: str | None) -> tuple[str | None, str | None] | None:
        return self._errors.get((queue, mark)) if mark is not None else (None, None)


def _message(row: Row) -> MessageRow:
    steps = [ReplayStep(*step) for step in row[-1]]
    return MessageRow(*(*row[:-1], steps))


def _report(run: Replay, reader: _HistoryReader, since: datetime, until: datetime, changes: list[str]) -> PolicyReplay:
    scale = 1 / reader.share
    total = _row(None, run.total, (run.history, run.now, run.then), scale)
    rows = [_row(name, totals, run.policy_loads[name], scale) for name, totals in sorted(run.by_policy.items())]
    return PolicyReplay(
        since=since,
        until=until,
        messages=run.total.messages,
        share=reader.share,
        left_out=reader.left_out,
        error_percent=_error(total),
        changes=changes,
        policies=rows,
        total=total,
        destinations=list(_destinations(run, scale)),
        assumptions=list(ASSUMPTIONS),
    )


def _row(policy: str | None, totals: ReplayTotals, loads: Sequence[Loads], scale: float) -> ReplayRow:
    history, current, changed = loads
    return ReplayRow(
        policy=policy,
        messages=round(totals.messages * scale),
        history=_figures([totals.history] * 3, history, scale),
        current=_figures(totals.current, current, scale),
        changed=_figures(totals.changed, changed, scale),
    )


def _figures(tallies: Sequence[ReplayTally], loads: Loads, scale: float) -> ReplayFigures:
    def ended(kind: Ended) -> Estimate:
        return _estimate([one.ended[kind] * scale for one in tallies])

    def times(of: Callable[[ReplayTally], float | None]) -> Estimate | None:
        found = [value for one in tallies if (value := of(one)) is not None]
        return _estimate(found) if of(tallies[0]) is not None else None

    return ReplayFigures(
        attempts=_estimate([one.attempts * scale for one in tallies]),
        succeeded=ended(Ended.SUCCEEDED),
        exhausted=ended(Ended.EXHAUSTED),
        final=ended(Ended.FINAL),
        reviewed=ended(Ended.REVIEWED),
        skipped=ended(Ended.SKIPPED),
        open=ended(Ended.OPEN),
        success_mean_ms=times(lambda one: one.mean_ms),
        success_p50_ms=times(lambda one: one.quantile_ms(0.5)),
        success_p95_ms=times(lambda one: one.quantile_ms(0.95)),
        peak_per_minute=round(loads.peak() * scale, 1),
    )


def _estimate(values: Sequence[float]) -> Estimate:
    value, *_ = found = [round(one, 1) for one in values]
    return Estimate(value, min(found), max(found))


def _error(total: ReplayRow) -> float:
    """Relative to the history, and for small numbers to the messages."""
    differences = [
        abs(current.value - was.value) / max(was.value, total.messages / 10, 1)
        for was, current in (
            (total.history.attempts, total.current.attempts),
            (total.history.succeeded, total.current.succeeded),
            (total.history.exhausted, total.current.exhausted),
        )
    ]
    return round(100 * max(differences), 2)


def _destinations(run: Replay, scale: float) -> Iterator[DestinationLoad]:
    queues = {*run.history.by_queue, *run.now.by_queue, *run.then.by_queue}
    found = [
        DestinationLoad(queue, *(round(loads.peak(queue) * scale, 1) for loads in (run.history, run.now, run.then)))
        for queue in queues
    ]
    yield from sorted(found, key=lambda one: (-max(one.history, one.changed), one.queue))[:MOST_DESTINATIONS]


def _changes(topology: Topology, changed: Topology) -> Iterator[str]:
    """`orders: max_retries 3 → 5`; no line for what stays as it is."""
    before = {policy.name: _written(policy) for policy in topology.policies}
    for policy in changed.policies:
        now, was = _written(policy), before.get(policy.name)
        if was is None:
            yield f"{policy.name}: new, before all others"
            continue
        parts = [f"{key} {_shown(was.get(key))} → {_shown(now.get(key))}" for key in now if now[key] != was.get(key)]
        parts += [f"{key} {_shown(was[key])} → none" for key in was if key not in now]
        if parts:
            yield f"{policy.name}: {', '.join(parts)}"


def _written(policy: Policy) -> Mapping[str, object]:
    found = policy.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {key: value for key, value in found.items() if key not in ("description", "extends", "without")}


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={_shown(of)}" for key, of in value.items())
    if isinstance(value, list):
        return " ".join(map(_shown, value)) or "none"
    return "none" if value is None else str(value)


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def spell(estimate: Estimate | None, *, as_time: bool = False) -> str:
    """`1,200 (1,100 to 1,300)`, or one number if the bounds are the same."""
    if estimate is None:
        return "-"
    value, low, high = (
        humanise(_rounded(one)) if as_time else f"{round(one):,}"
        for one in (estimate.value, estimate.low, estimate.high)
    )
    return value if low == high else f"{value} ({low} to {high})"


def _rounded(ms: float) -> int:
    """Two digits are enough."""
    if ms < 1_000:  # noqa: PLR2004 - a second
        return round(ms)
    unit = int(10 ** (len(str(round(ms))) - 2))
    return max(1_000, round(ms / unit) * unit)
