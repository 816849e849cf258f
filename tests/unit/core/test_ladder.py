"""Literal names and itineraries: what a delay becomes on the broker, written down."""

from __future__ import annotations

import pytest

from tarry.core.ladder import LONGEST_DELAY, Itinerary, Ladder, itinerary
from tarry.core.names import Destination, Names, id_key
from tarry.errors import DelayTooLongError

LADDER = Ladder()
TIERS = frozenset({2_000, 8_000, 60_000, 86_400_000})
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000


@pytest.mark.parametrize(
    ("delay", "base", "keys", "hops"),
    [
        (0, None, "~in:ladder ~6>end", 0),
        (1, None, "~in:ladder ~6>0 ~0:1", 1),
        (125, None, "~in:ladder ~6>0 ~0:1", 1),
        (126, None, "~in:ladder ~6>0 ~0:2", 1),
        (SECOND, None, "~in:ladder ~6>1 ~1:1 ~0>end", 1),
        (8 * SECOND, None, "~in:8s ~6>end", 1),
        (8 * SECOND + 375, 8 * SECOND, "~in:8s ~6>0 ~0:3", 2),
        (8 * SECOND + 375, None, "~in:ladder ~6>2 ~2:1 ~1>0 ~0:3", 2),
        (MINUTE, 2 * SECOND, "~in:1m ~6>end", 1),
        (24 * HOUR, None, "~in:24h ~6>end", 1),
        (90 * SECOND, 7 * SECOND, "~in:ladder ~6>3 ~3:1 ~2:3 ~1:2 ~0>end", 3),
        (LADDER.longest_ms, None, "~in:ladder ~6:7 ~5:7 ~4:7 ~3:7 ~2:7 ~1:7 ~0:7", 7),
    ],
)
def test_a_delay_becomes_these_keys(delay: int, base: int | None, keys: str, hops: int) -> None:
    way = itinerary(LADDER, delay, TIERS, base)

    assert " ".join(way.keys) == keys
    assert len(way.waits(LADDER)) == hops


def test_a_tier_longer_than_the_delay_is_never_used() -> None:
    assert itinerary(LADDER, 1_000, TIERS, base_ms=2_000).tier_ms is None


def test_the_ladder_spans_72_hours_and_a_millisecond_more_takes_two_legs() -> None:
    assert LADDER.longest_ms == 262_143_875
    with pytest.raises(DelayTooLongError, match="does not fit the ladder"):
        LADDER.digits(LADDER.longest_ms + 1)
    way = itinerary(LADDER, LADDER.longest_ms + 1, TIERS)
    assert (way.keys, way.legs(LADDER)) == (itinerary(LADDER, LADDER.longest_ms, TIERS).keys, (262_143_875, 125))


def test_an_itinerary_of_a_week_has_legs_of_three_days() -> None:
    way = itinerary(LADDER, 7 * 86_400_000, TIERS)
    assert (way.delay_ms, way.leg_ms) == (604_800_000, 262_143_875)
    assert way.legs(LADDER) == (262_143_875, 262_143_875, 80_512_250)


def test_an_itinerary_keeps_its_tier_on_the_first_leg() -> None:
    way = itinerary(LADDER, 8_000 + LADDER.longest_ms + 125, {8_000}, 8_000)
    assert (way.tier_ms, way.legs(LADDER)) == (8_000, (8_000 + LADDER.longest_ms, 125))


def test_an_itinerary_of_more_than_a_year_is_refused() -> None:
    assert itinerary(LADDER, LONGEST_DELAY, TIERS).delay_ms == 366 * 86_400_000
    with pytest.raises(DelayTooLongError, match=r"longer than a year \(366d\)"):
        itinerary(LADDER, LONGEST_DELAY + 1, TIERS)


def test_an_itinerary_reads_as_its_waits() -> None:
    way = Itinerary(8_000, (0, 0, 0, 0, 0, 1, 3), 9_375)

    assert way.waits(LADDER) == ("8s", "1s", "375ms")


def test_queues_and_exchanges_have_these_names() -> None:
    names = Names()

    assert names.tier(8_000) == "retry.delay.8s"
    assert names.tier(90_000) == "retry.delay.90s"
    assert names.tier(86_400_000) == "retry.delay.24h"
    assert names.ladder(6) == "retry.ladder.6"
    assert names.ladder_queue(0, 375) == "retry.ladder.0.375ms"
    assert names.ladder_queue(6, LADDER.ttl(6, 1)) == "retry.ladder.6.32768s"
    assert names.relay_queue(Destination("queue", "orders")) == "retry.relay.orders"
    assert names.held_queue(Destination("exchange", "events")) == "retry.held.exchange:events"


def test_keys_are_single_words_that_no_topic_pattern_with_a_word_matches() -> None:
    keys = [id_key("6f1c", 2), Destination("exchange", "a.b%c").key, *itinerary(LADDER, 375, TIERS).keys]

    assert keys[:2] == ["~id:6f1c:2", "~via:a%2Eb%25c"]
    assert all(key.startswith("~") and "." not in key for key in keys)
