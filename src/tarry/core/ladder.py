"""Converts a delay to the tiers a message waits in.

A delay is an exact policy tier if there is one, plus a number of granules (125 ms) in octal for the rest. Each digit is
one wait in the ladder; any number of zeros is skipped. Delays are rounded up: a message is never early. A delay that
does not fit into the ladder is an error, never a wrong key.
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
                f"A delay of {humanise(ms)} does not fit the ladder, which holds {humanise(self.longest_ms)}: "
                "shorten the delay, or give the ladder another level in the topology."
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
    """The tiers that a message waits in: at most one policy tier, then ladder digits, most significant first."""

    tier_ms: int | None
    digits: tuple[int, ...]
    delay_ms: int

    @property
    def keys(self) -> tuple[str, ...]:
        """The routing keys for the tiers, sent as BCC: the broker keeps them and no consumer sees them."""
        keys = [ENTER_LADDER if self.tier_ms is None else enter_key(self.tier_ms)]
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


def itinerary(ladder: Ladder, delay_ms: int, tiers: Collection[int], base_ms: int | None = None) -> Itinerary:
    """The cheapest itinerary: the delay's tier, else the tier of `base_ms` and the ladder, else the ladder alone."""
    tier = delay_ms if delay_ms in tiers else base_ms
    if tier is None or tier not in tiers or tier > delay_ms:
        tier = None
    rest = max(delay_ms, 0) - (tier or 0)
    return Itinerary(tier, ladder.digits(rest), (tier or 0) + ladder.granules(rest) * ladder.granularity_ms)


def first_queue(way: Itinerary, names: Names, ladder: Ladder) -> str:
    """The first queue that a message waits in; without a delay, the relay."""
    if way.tier_ms is not None:
        return _tier_name(names, way.tier_ms)
    for level, digit in zip(range(ladder.levels - 1, -1, -1), way.digits, strict=True):
        if digit:
            return names.ladder_queue(level, ladder.ttl(level, digit))
    return names.relay


@lru_cache(maxsize=4_096)
def _tier_name(names: Names, tier_ms: int) -> str:
    return names.tier(tier_ms)
