"""Converts a delay to the tiers a message waits in.

A delay is an exact policy tier if there is one, plus a number of granules (125 ms) in octal for the rest. Each digit is
one wait in the ladder; any number of zeros is skipped. Delays are rounded up: a message is never early. A delay that
does not fit into the ladder is made of several *legs*: the message waits as long as the ladder holds, returns to the
router (a *layover*), and is sent for the rest. A delay of more than a year is an error, never a wrong key.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tarry.core.durations import UNITS, format_duration, humanise
from tarry.core.names import Names, digit_key, enter_key, enter_ladder_key, skip_key
from tarry.errors import DelayTooLongError

JITTER_HOPS = 2
"""Jitter may add at most this many waits."""

LONGEST_DELAY = 366 * UNITS["d"]
"""A year, in milliseconds, and a day more for a leap year."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """The number system of the delays: `levels` digits of base `radix`, counting granules."""

    granularity_ms: int = 125
    radix: int = 8
    levels: int = 7

    @property
    def longest_ms(self) -> int:
        return self.ttl(self.levels, 1) - self.granularity_ms

    def ttl(self, level: int, digit: int) -> int:
        """How long `digit` steps at `level` take."""
        step: int = self.granularity_ms * self.radix**level
        return digit * step

    def granules(self, ms: int) -> int:
        """The number of granules, rounded up."""
        return -(-ms // self.granularity_ms)

    def digits(self, ms: int) -> tuple[int, ...]:
        """The digits of a delay, most significant first, one for each level."""
        if ms > self.longest_ms:
            raise DelayTooLongError(
                f"A delay of {humanise(ms)} does not fit the ladder, which holds {humanise(self.longest_ms)}."
            )
        left, found = self.granules(max(ms, 0)), []
        for _ in range(self.levels):
            left, digit = divmod(left, self.radix)
            found.append(digit)
        return tuple(reversed(found))

    def jitter(self, longest_ms: int, draw: float) -> int:
        """A jitter in 0…`longest_ms` from a draw in [0, 1), cut to two leading digits to limit the waits it adds."""
        left = int(draw * (longest_ms // self.granularity_ms + 1))
        unit: int = self.radix ** max(0, _digit_count(left, self.radix) - JITTER_HOPS)
        return left // unit * unit * self.granularity_ms


def _digit_count(number: int, radix: int) -> int:
    count = 0
    while number:
        number //= radix
        count += 1
    return count


class Itinerary(NamedTuple):
    """The tiers that a message waits in: at most one policy tier, then ladder digits, most significant first.

    If the delay does not fit, they are the tiers of its first leg.
    """

    tier_ms: int | None
    digits: tuple[int, ...]
    delay_ms: int
    """The whole delay, including all later legs."""
    leg_ms: int = 0
    """How long the first leg takes, if others follow; 0 if these tiers hold the whole delay."""
    lane: str | None = None
    """The lane that these tiers belong to; None for the tiers that policies share."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The routing keys for the tiers, sent as BCC: the broker keeps them and no consumer sees them."""
        keys = [enter_ladder_key(self.lane) if self.tier_ms is None else enter_key(self.tier_ms, self.lane)]
        top = at = len(self.digits) - 1
        for level, digit in ((top - place, digit) for place, digit in enumerate(self.digits) if digit):
            if level < at:
                keys.append(skip_key(at, level))
            keys.append(digit_key(level, digit))
            at = level - 1
        return (*keys, skip_key(at, None)) if at >= 0 else tuple(keys)

    def waits(self, ladder: Ladder) -> tuple[str, ...]:
        """The waits for display: `("8s", "375ms")`."""
        top = len(self.digits) - 1
        rest = [ladder.ttl(top - place, digit) for place, digit in enumerate(self.digits) if digit]
        return tuple(format_duration(ms) for ms in ([self.tier_ms] if self.tier_ms is not None else []) + rest)

    def legs(self, ladder: Ladder) -> tuple[int, ...]:
        """How long each leg takes, in milliseconds, if the router sends it on without delay."""
        found, left = [self.leg_ms], self.delay_ms - self.leg_ms
        if not self.leg_ms:
            return (left,)
        while left > ladder.longest_ms:
            found.append(ladder.longest_ms)
            left -= ladder.longest_ms
        return (*found, left)


def itinerary(
    ladder: Ladder, delay_ms: int, tiers: Collection[int], base_ms: int | None = None, lane: str | None = None
) -> Itinerary:
    """The cheapest itinerary: the delay's tier, else the tier of `base_ms` and the ladder, else the ladder alone.

    `tiers` are those of the lane. A delay of several legs has no lane: only the shared relays lead to the router.
    """
    tier = delay_ms if delay_ms in tiers else base_ms
    if tier is None or tier not in tiers or tier > delay_ms:
        tier = None
    rest = max(delay_ms, 0) - (tier or 0)
    whole, longest = (tier or 0) + ladder.granules(rest) * ladder.granularity_ms, ladder.longest_ms
    if rest <= longest:
        return Itinerary(tier, ladder.digits(rest), whole, lane=lane)
    if delay_ms > LONGEST_DELAY:
        raise DelayTooLongError(
            f"A delay of {humanise(delay_ms)} is longer than a year ({humanise(LONGEST_DELAY)}), the most that a "
            "message can wait: shorten it."
        )
    if lane is not None:
        return itinerary(ladder, delay_ms, ())
    return Itinerary(tier, ladder.digits(longest), whole, (tier or 0) + longest)


def first_queue(way: Itinerary, names: Names, ladder: Ladder) -> str:
    """The first queue that a message waits in; without a delay, the shared relay."""
    if way.tier_ms is not None:
        return _tier_name(names, way.tier_ms, way.lane)
    for level, digit in zip(range(ladder.levels - 1, -1, -1), way.digits, strict=True):
        if digit:
            return names.ladder_queue(level, ladder.ttl(level, digit), way.lane)
    return names.relay_of(way.lane)


@lru_cache(maxsize=4_096)
def _tier_name(names: Names, tier_ms: int, lane: str | None) -> str:
    return names.tier(tier_ms, lane)
