"""Properties of every ladder and every delay: never early, less than one granule late, jitter cheap and in range."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from tarry.core.ladder import JITTER_HOPS, LONGEST_DELAY, Ladder, itinerary

LADDERS = st.builds(Ladder, st.sampled_from([1, 25, 100, 125, 1_000]), st.integers(2, 16), st.integers(1, 8))
DRAWS = st.floats(0, 1, exclude_max=True)
DELAYS = st.integers(0, 300_000_000)
TIERS = st.frozensets(st.integers(1, 90_000_000), max_size=8)


def _waited(ladder: Ladder, tier_ms: int | None, digits: tuple[int, ...]) -> int:
    """What the queues on the way add up to, from the digits alone."""
    top = len(digits) - 1
    return (tier_ms or 0) + sum(ladder.ttl(top - place, digit) for place, digit in enumerate(digits))


@given(LADDERS, DELAYS, TIERS, st.data())
def test_the_waits_add_up_to_the_delay_rounded_up_by_less_than_a_granule(
    ladder: Ladder, delay: int, tiers: frozenset[int], data: st.DataObject
) -> None:
    base = data.draw(st.sampled_from(sorted(tiers))) if tiers else None
    tier = delay if delay in tiers else base if base is not None and base <= delay else None
    assume(delay - (tier or 0) <= ladder.longest_ms)

    way = itinerary(ladder, delay, tiers, base)
    total = _waited(ladder, way.tier_ms, way.digits)

    assert delay <= total < delay + ladder.granularity_ms
    assert total == way.delay_ms


@given(LADDERS, st.integers(0, 100_000_000), DRAWS)
def test_jitter_stays_in_its_range(ladder: Ladder, longest: int, draw: float) -> None:
    assert 0 <= ladder.jitter(longest, draw) <= longest


@given(DELAYS, st.integers(0, 20_000_000), DRAWS)
def test_jitter_costs_at_most_two_hops_more_than_the_same_delay_without(wait: int, longest: int, draw: float) -> None:
    ladder = Ladder()
    jitter = ladder.jitter(longest, draw)
    assume(wait + jitter <= ladder.longest_ms)

    with_tier = itinerary(ladder, wait + jitter, {wait}, base_ms=wait)
    without = itinerary(ladder, wait + jitter, set())

    assert len(with_tier.waits(ladder)) <= 1 + JITTER_HOPS
    assert len(without.waits(ladder)) <= len(itinerary(ladder, wait, set()).waits(ladder)) + JITTER_HOPS


@given(LADDERS, DELAYS)
def test_every_level_has_exactly_one_digit_below_the_radix(ladder: Ladder, delay: int) -> None:
    assume(delay <= ladder.longest_ms)

    digits = ladder.digits(delay)

    assert len(digits) == ladder.levels
    assert all(0 <= digit < ladder.radix for digit in digits)


@given(st.integers(0, 100_000))
def test_the_whole_range_of_jitter_can_be_drawn(longest: int) -> None:
    ladder = Ladder()

    assert ladder.jitter(longest, 0) == 0
    assert ladder.jitter(longest, 1 - 2**-53) > longest - longest // ladder.radix - ladder.granularity_ms


@given(LADDERS, st.integers(0, LONGEST_DELAY), TIERS, st.data())
def test_legs_add_up_to_the_delay_and_none_exceeds_its_tier_and_the_ladder(
    ladder: Ladder, delay: int, tiers: frozenset[int], data: st.DataObject
) -> None:
    assume(delay < 5_000 * ladder.longest_ms)
    base = data.draw(st.sampled_from(sorted(tiers))) if tiers else None

    way = itinerary(ladder, delay, tiers, base)
    first, *others = way.legs(ladder)

    assert delay <= way.delay_ms < delay + ladder.granularity_ms
    assert first + sum(others) == way.delay_ms
    assert first == _waited(ladder, way.tier_ms, way.digits) <= (way.tier_ms or 0) + ladder.longest_ms
    assert all(0 < leg <= ladder.longest_ms for leg in others)
    assert bool(way.leg_ms) == bool(others)


@given(LADDERS, st.integers(1, LONGEST_DELAY), st.lists(st.integers(0, 5_000)))
def test_legs_sent_for_the_rest_however_late_never_end_early(ladder: Ladder, delay: int, lateness: list[int]) -> None:
    """As the router sends them: each leg ends late by some milliseconds, and the next is for what is left then."""
    assume(delay < 200 * ladder.longest_ms)
    late = iter(lateness)
    way = itinerary(ladder, delay, ())
    due, now, legs = way.delay_ms, 0, 0
    while way.leg_ms:
        now += way.leg_ms + next(late, 0)
        way = itinerary(ladder, max(0, due - now), ())
        legs += 1
    now += way.delay_ms

    assert due <= now
    assert legs <= delay // ladder.longest_ms + 1
    assert now < due + ladder.granularity_ms + sum(lateness)
