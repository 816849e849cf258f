"""Puts the steps of each retry in the order in which they happened, across batches. Pure.

Steps are recorded by several processes: a router records that it has scheduled a message after the broker has
confirmed it, and by then the tap of another router may have recorded its return. So a step waits here until the one
that must come before it has been read, or for some time: that step may never come, if its record was lost. The time
counts only while hardly any record waits to be written: after an outage of Postgres that takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import groupby

from tarry.core.states import Note, State
from tarry.events.rows import OF_THE_RETRY, StepRow

Round = tuple[str, int]
"""A retry id and a round."""

LONGEST_HOLD = 30.0
"""Seconds that a step waits for an earlier one, by the `ReadingClock`."""

MOST_HELD = 100_000
"""Retries with steps that wait. If there are more, the time counts also while records wait to be written."""

REMEMBERED = 20_000
"""Released steps that are remembered, at least: their rounds need not be looked up."""

_BEGINNINGS = frozenset({State.SCHEDULED, State.IN_REVIEW, State.SKIPPED})
_ENDS = frozenset(
    {
        State.RETURNED,
        State.SUCCEEDED,
        State.CANCELLED,
        State.DISCARDED,
        State.UNROUTABLE,
        State.IN_REVIEW,
        State.SKIPPED,
    }
)


def needed(step: StepRow) -> tuple[Round, frozenset[State]] | None:
    """The round and the states of which one must come before this step; None if it can be the first."""
    if step.state == Note.DUPLICATE:
        return None
    if step.state in _BEGINNINGS:
        return ((step.retry_id, step.round - 1), _ENDS) if step.round > 1 else None
    if step.state in (State.SUCCEEDED, Note.STUCK):
        return (step.retry_id, step.round), frozenset({State.RETURNED})
    return (step.retry_id, step.round), _BEGINNINGS


@dataclass(slots=True)
class ReadingClock:
    """The time by which steps stop waiting. It follows the times at which the steps were recorded that have been read,
    and is never faster than time itself: steps from before and after an outage are read within milliseconds.
    """

    seconds: float = 0.0
    _last: tuple[float, float] | None = None

    def advance(self, read_until: float, now: float) -> float:
        """`read_until` is the time until which steps have been read, and `now` that of any steady clock."""
        if self._last is not None:
            self.seconds += max(0.0, min(read_until - self._last[0], now - self._last[1]))
        self._last = read_until, now
        return self.seconds


@dataclass(slots=True)
class StepOrder:
    """Holds steps back whose turn has not come."""

    held: dict[str, list[StepRow]] = field(default_factory=dict)
    """By retry."""
    _since: dict[str, float] = field(default_factory=dict)
    """When the first step of each of these retries was held back, or when many records were last waiting."""
    _recent: set[tuple[str, int, str]] = field(default_factory=set)
    _older: set[tuple[str, int, str]] = field(default_factory=set)

    @property
    def first_xid(self) -> int | None:
        """The oldest transaction of which a step is held back."""
        return min((step.xid for steps in self.held.values() for step in steps), default=None)

    def rounds_to_look_up(self, steps: Iterable[StepRow]) -> set[Round]:
        """The rounds whose earlier steps decide whether these, and those held back, can be published."""
        some = [*steps, *(step for held in self.held.values() for step in held)]
        there = {(step.retry_id, step.round, step.state) for step in some}
        found = set()
        for step in some:
            needs = needed(step)
            if needs is not None and not self._is_among(needs, there):
                found.add(needs[0])
        return found

    def _is_among(self, needs: tuple[Round, frozenset[State]], steps: AbstractSet[tuple[str, int, str]]) -> bool:
        """Or among those that were released lately."""
        keys = {(*needs[0], state) for state in needs[1]}
        return not (keys.isdisjoint(steps) and keys.isdisjoint(self._recent) and keys.isdisjoint(self._older))

    def _remember(self, steps: Iterable[StepRow]) -> None:
        self._recent.update((step.retry_id, step.round, step.state) for step in steps)
        if len(self._recent) > REMEMBERED:
            self._older, self._recent = self._recent, set()

    def release(
        self,
        steps: Sequence[StepRow],
        known: Mapping[Round, AbstractSet[str]],
        now: float,
        *,
        records_wait: bool = False,
    ) -> list[StepRow]:
        """Those of the steps, and of those held back, whose turn has come; `known` are the states that were read
        before, of the rounds that were to be looked up, `now` is the time by the `ReadingClock`, and `records_wait`
        says that many steps are still to be recorded.
        """
        if records_wait and len(self.held) <= MOST_HELD:
            self._since = dict.fromkeys(self._since, now)
        waiting = [*(step for held in self.held.values() for step in held), *steps]
        by_retry = groupby(sorted(waiting, key=lambda one: (one.retry_id, one.order)), lambda one: one.retry_id)
        ready: dict[str, list[StepRow]] = {}
        had_to_wait, self.held = self.held, {}
        for retry, group in by_retry:
            those = _completed(list(group)) if retry in had_to_wait else list(group)
            ready[retry] = self._ready(retry, those, known, now)
        self._since = {retry: since for retry, since in self._since.items() if retry in self.held}
        places = sorted((step for some in ready.values() for step in some), key=lambda one: (one.xid, one.id))
        self._remember(places)
        turns = {retry: iter(some) for retry, some in ready.items()}
        return [next(turns[one.retry_id]) for one in places]

    def _ready(
        self, retry: str, steps: list[StepRow], known: Mapping[Round, AbstractSet[str]], now: float
    ) -> list[StepRow]:
        """The first steps of a retry, up to one that has to wait."""
        if now - self._since.get(retry, now) >= LONGEST_HOLD:
            return steps
        before: set[tuple[str, int, str]] = set()
        for place, step in enumerate(steps):
            needs = needed(step)
            if needs is not None and not self._is_among(needs, before) and needs[1].isdisjoint(known.get(needs[0], ())):
                self.held[retry] = steps[place:]
                self._since.setdefault(retry, now)
                return steps[:place]
            before.add((step.retry_id, step.round, step.state))
        return steps


def _completed(steps: Sequence[StepRow]) -> list[StepRow]:
    """With what was not known about their retry when they were read, and is now: a return can be recorded before the
    request, which says what the message is.
    """
    latest = max(steps, key=lambda one: one.xid)
    about = {name: getattr(latest, name) for name in OF_THE_RETRY}
    return [one._replace(**{name: about[name] for name in about if getattr(one, name) is None}) for one in steps]
