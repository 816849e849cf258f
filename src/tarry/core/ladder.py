"""From a delay to the tiers a message waits in.

A delay is an exact policy tier where there is one, plus a number of granules (125 ms) in octal for what is left. Each
digit is one wait in the ladder; zeros are skipped, however many. Rounding goes up: a message is never early. A delay
that the ladder cannot hold is an error, never a wrong key.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tarry.core.durations import format_duration, humanise
from tarry.core.names import ENTER_LADDER, Names, digit_key, enter_key, skip_key
from tarry.errors import DelayTooLongError

JITTER_HOPS = 2
"""Jitter may add at most this many waits."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """An odometer: `levels` digits of base `radix`, counting granules."""

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
        """Rounded up."""
        return -(-ms // self.granularity_ms)

    def digits(self, ms: int) -> tuple[int, ...]:
        """Most significant first, one for each level."""
        if ms > self.longest_ms:
            raise DelayTooLongError(
                f"A delay of {humanise(ms)} does not fit the ladder, which holds {humanise(self.longest_ms)}: "
                "shorten the delay, or give the ladder another level in the topology."
            )
        left, found = self.granules(max(ms, 0)), []
        for _ in range(self.levels):
            left, digit = divmod(left, self.radix)
            found.append(digit)
        return tuple(reversed(found))

    def jitter(self, longest_ms: int, draw: float) -> int:
        """A jitter in 0…`longest_ms` from a draw in [0, 1), cut to its two leading digits so that it stays cheap."""
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
    """The tiers one message will wait in: a policy tier or none, then ladder digits, most significant first."""

    tier_ms: int | None
    digits: tuple[int, ...]
    delay_ms: int

    @property
    def keys(self) -> tuple[str, ...]:
        """The routing keys of the way out; the broker keeps them and no consumer sees them."""
        keys = [ENTER_LADDER if self.tier_ms is None else enter_key(self.tier_ms)]
        top = at = len(self.digits) - 1
        for level, digit in ((top - place, digit) for place, digit in enumerate(self.digits) if digit):
            if level < at:
                keys.append(skip_key(at, level))
            keys.append(digit_key(level, digit))
            at = level - 1
        return (*keys, skip_key(at, None)) if at >= 0 else tuple(keys)

    @property
    def hops(self) -> int:
        """How many queues it waits in."""
        return (self.tier_ms is not None) + sum(1 for digit in self.digits if digit)

    def waits(self, ladder: Ladder) -> tuple[str, ...]:
        """For people: `("8s", "375ms")`."""
        top = len(self.digits) - 1
        rest = [ladder.ttl(top - place, digit) for place, digit in enumerate(self.digits) if digit]
        return tuple(format_duration(ms) for ms in ([self.tier_ms] if self.tier_ms is not None else []) + rest)


def itinerary(ladder: Ladder, delay_ms: int, tiers: Collection[int], base_ms: int | None = None) -> Itinerary:
    """The cheapest known way to wait: the delay's own tier, else `base_ms`'s and a rest, else the ladder alone."""
    tier = delay_ms if delay_ms in tiers else base_ms
    if tier is None or tier not in tiers or tier > delay_ms:
        tier = None
    rest = max(delay_ms, 0) - (tier or 0)
    return Itinerary(tier, ladder.digits(rest), (tier or 0) + ladder.granules(rest) * ladder.granularity_ms)


def first_queue(way: Itinerary, names: Names, ladder: Ladder) -> str:
    """The queue that a message waits in first; without any delay that is the relay."""
    if way.tier_ms is not None:
        return _tier_name(names, way.tier_ms)
    for level, digit in zip(range(ladder.levels - 1, -1, -1), way.digits, strict=True):
        if digit:
            return names.ladder_tier(level, ladder.ttl(level, digit))
    return names.relay


@lru_cache(maxsize=4_096)
def _tier_name(names: Names, tier_ms: int) -> str:
    return names.tier(tier_ms)
