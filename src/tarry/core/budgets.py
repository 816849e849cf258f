"""Budgets: how many retries may come due in an hour, a day or a month. Pure: moments are arguments, in milliseconds
since 1970.

A retry counts in the period in which it comes due. Days and months begin at midnight by the clock of the budget's
zone; where a change of the clock skips midnight, at the moment of that change. An hour is the hour that this clock
shows, so it lasts half an hour where the clock changes by half an hour.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, NamedTuple
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator, Field, WithJsonSchema

from tarry.core.duration_field import Duration
from tarry.core.model import Model, Whole
from tarry.core.windows import DAY_MS, Opening, Window, Zone, clock_change, next_opening, offset_at

HOUR_MS = 3_600_000
SHORTEST_MS = {"1h": HOUR_MS // 2, "1d": 20 * HOUR_MS, "1mo": 27 * DAY_MS}
"""Less than any period of this length takes."""

MOST = 2**53
"""The largest limit; a counter is larger by one charge at most."""


class Per(StrEnum):
    """Whose retries are counted together, within a policy."""

    OWNER = "owner"
    QUEUE = "queue"
    POLICY = "policy"


class Every(StrEnum):
    """The length of a period."""

    HOUR = "1h"
    DAY = "1d"
    MONTH = "1mo"

    @property
    def word(self) -> str:
        return {"1h": "hour", "1d": "day", "1mo": "month"}[self.value]


class Over(StrEnum):
    """What becomes of a retry for which there is no room."""

    DEFER = "defer"
    REVIEW = "review"
    SKIP = "skip"


class Unit(StrEnum):
    """What is counted."""

    RETRIES = "retries"
    COST = "cost"


def _read_every(value: object) -> object:
    words = {one.word: one.value for one in Every} | {one.value: one.value for one in Every}
    found = words.get(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f'`{value}`: write "1h", "1d" or "1mo" (or hour, day, month)')
    return found


Period = Annotated[
    Every,
    BeforeValidator(_read_every),
    WithJsonSchema({"type": "string", "enum": ["1h", "1d", "1mo", "hour", "day", "month"]}),
]


class Budget(Model):
    """How many retries may come due in a period."""

    per: Per = Field(
        description="Whose retries are counted together: those of an `owner`, of a `queue`, or of the whole `policy`; "
        "only those of this policy. A message without an owner does not count in a budget per owner."
    )
    limit: Whole = Field(ge=1, le=MOST, description="The most retries that come due in a period, or the most cost.")
    every: Period = Field(description="The period: 1h, 1d or 1mo (or hour, day, month), by the clock of `zone`.")
    over: Over = Field(
        Over.DEFER,
        description="What becomes of a retry for which there is no room: `defer` to the first later period that has "
        "room, `review`, or `skip`.",
    )
    zone: Zone = Field("UTC", description="The time zone in which days and months begin, as in Europe/Zagreb.")
    spread: Duration = Field(
        0, description="Deferred retries return at a random moment within this time after the period begins."
    )
    unit: Unit = Field(Unit.RETRIES, description="Count `retries`, or the `cost` of the policy for each of them.")

    @property
    def identity(self) -> tuple[str, ...]:
        """What makes a counter: a budget with another limit counts on."""
        return (self.per.value, self.every.value, self.unit.value, self.zone)

    def key(self, policy: str) -> str:
        """The name of its counters in the store: `uploads/owner/1d/retries/UTC`."""
        return "/".join((policy, *self.identity))

    def subject(self, owner: str | None, queue: str) -> str | None:
        """Whose counter a message counts in; None if it counts in none."""
        return {Per.OWNER: owner, Per.QUEUE: queue, Per.POLICY: ""}[self.per]

    def describe(self, limit: int | None = None) -> str:
        """`100 retries per owner and day (UTC)`."""
        what = self.unit.value if self.unit is Unit.RETRIES else "of cost"
        return f"{self.limit if limit is None else limit:,} {what} per {self.per} and {self.every.word} ({self.zone})"

    def period(self, at_ms: int) -> PeriodSpan:
        """The period that holds this moment."""
        if self.every is Every.HOUR:
            return _hour(at_ms, self.zone)
        known = _last_found.get((self.every, self.zone))
        if known is None or not known.starts <= at_ms < known.ends:
            known = _last_found[self.every, self.zone] = _days(at_ms, self.zone, self.every)
        return known


class PeriodSpan(NamedTuple):
    """One period, without its end."""

    starts: int
    ends: int


_last_found: dict[tuple[Every, str], PeriodSpan] = {}
"""The period found last. Most moments are in the same day or month as the one before."""


def _hour(at_ms: int, zone: str) -> PeriodSpan:
    offset = _offset_ms(at_ms, zone)
    starts = (at_ms + offset) // HOUR_MS * HOUR_MS - offset
    ends = starts + HOUR_MS
    if _offset_ms(starts, zone) != offset:
        starts = clock_change(starts, at_ms, ZoneInfo(zone))
    if _offset_ms(ends - 1, zone) != offset:
        ends = clock_change(at_ms, ends - 1, ZoneInfo(zone))
    return PeriodSpan(starts, ends)


def _offset_ms(at_ms: int, zone: str) -> int:
    return round((offset_at(at_ms, ZoneInfo(zone)) or timedelta()).total_seconds() * 1000)


def _days(at_ms: int, zone: str, every: Every) -> PeriodSpan:
    """The day or month between whose midnights the moment is. A day that does not exist has no length."""
    shown = datetime.fromtimestamp(at_ms // 1000, ZoneInfo(zone)).date()
    day = (shown - timedelta(days=1)).replace(day=1) if every is Every.MONTH else shown - timedelta(days=2)
    while (ends := _midnight(_following(day, every), zone)) <= at_ms:
        day = _following(day, every)
    return PeriodSpan(_midnight(day, zone), ends)


def _following(day: date, every: Every) -> date:
    return day + timedelta(days=1) if every is Every.DAY else (day + timedelta(days=31)).replace(day=1)


@lru_cache(maxsize=1_024)
def _midnight(day: date, zone: str) -> int:
    """When the day begins. Midnight may exist twice; the first one counts."""
    shown = datetime.combine(day, time(), ZoneInfo(zone))
    return round(shown.astimezone(UTC).timestamp() * 1000)


class Slot(NamedTuple):
    """A time in which no budget of a policy begins a new period."""

    begins_ms: int
    opens_ms: int
    """The first moment at which a deferred message may return: later than its beginning if windows are closed then."""
    spread_ms: int
    """By how much that moment can be later for some messages."""
    periods: tuple[PeriodSpan, ...]
    """For each budget, its period."""


def slots(
    budgets: Sequence[Budget], windows: Sequence[Window], from_ms: int, until_ms: int, granularity_ms: int
) -> Iterator[Slot]:
    """The slots that begin until `until_ms`, from the one that holds `from_ms` on. Those without a moment at which all
    windows are open are left out. Delays are rounded up by less than `granularity_ms`: a spread leaves room for that.
    """
    widest = max(*(one.spread for one in budgets), *(one.spread for one in windows), 0)
    begins, opening = from_ms, None
    while begins <= until_ms:
        periods = tuple(budget.period(begins) for budget in budgets)
        ends = min(period.ends for period in periods)
        if opening is None or not opening.tells(begins):
            opening = _opening(windows, begins)
        if opening is None:
            return
        opens = max(begins, opening.opens)
        if opens < ends:
            room = min(ends, opening.closes) - opens - granularity_ms
            yield Slot(begins, opens, max(0, min(widest, room)), periods)
        begins = ends


def _opening(windows: Sequence[Window], at_ms: int) -> Opening | None:
    return next_opening(windows, at_ms) if windows else Opening(at_ms, at_ms, MOST)


class Caps(NamedTuple):
    """The most retries of owners that an operator has limited."""

    by_owner: Mapping[tuple[str, str | None], int] = {}
    """By owner and policy; without a policy, for all policies that have none of their own."""

    def of(self, owner: str | None, policy: str) -> int | None:
        """The most retries of a message; None if its owner is not limited."""
        if owner is None or not self.by_owner:
            return None
        own = self.by_owner.get((owner, policy))
        return self.by_owner.get((owner, None)) if own is None else own


NO_CAPS = Caps()
