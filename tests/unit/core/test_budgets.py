"""Budgets: their periods and slots around changes of the clock, and what a policy may say."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tarry.core.budgets import HOUR_MS, SHORTEST_MS, Budget, Caps, slots
from tarry.core.decide import Failure, Review, Rulebook, decide
from tarry.core.ladder import Ladder
from tarry.core.policy import Policy
from tarry.core.windows import Window, all_open
from tests.unit.core.test_windows_properties import ZONES, clock_changes, windows

DAY = {"per": "owner", "limit": 2, "every": "1d"}
PLAIN = {"name": "p", "schedule": ["2s"], "max_retries": 3}


def budget(**fields: Any) -> Budget:
    return Budget.model_validate(DAY | fields)


def policy(**fields: Any) -> Policy:
    return Policy.model_validate(PLAIN | fields)


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def local(at_ms: int, zone: str) -> str:
    return datetime.fromtimestamp(at_ms / 1000, ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M")


@pytest.mark.parametrize(
    ("every", "zone", "at", "starts", "ends"),
    [
        ("1h", "UTC", "2026-03-01T10:59:59", "2026-03-01T10:00", "2026-03-01T11:00"),
        ("1h", "Asia/Kolkata", "2026-03-01T10:29:59", "2026-03-01T09:30", "2026-03-01T10:30"),
        ("1h", "Australia/Lord_Howe", "2026-04-04T14:45", "2026-04-04T14:00", "2026-04-04T15:00"),
        ("1h", "Australia/Lord_Howe", "2026-04-04T15:10", "2026-04-04T15:00", "2026-04-04T15:30"),
        ("1d", "UTC", "2026-03-01T10:59:59", "2026-03-01T00:00", "2026-03-02T00:00"),
        ("1d", "Europe/Zagreb", "2026-03-29T12:00", "2026-03-28T23:00", "2026-03-29T22:00"),
        ("1d", "America/Santiago", "2026-09-06T12:00", "2026-09-06T04:00", "2026-09-07T03:00"),
        ("1d", "Pacific/Apia", "2011-12-30T12:00", "2011-12-30T10:00", "2011-12-31T10:00"),
        ("1mo", "UTC", "2026-12-31T23:59:59", "2026-12-01T00:00", "2027-01-01T00:00"),
        ("month", "Europe/Zagreb", "2026-03-31T21:59:59", "2026-02-28T23:00", "2026-03-31T22:00"),
        ("1mo", "America/New_York", "2026-03-01T05:00", "2026-03-01T05:00", "2026-04-01T04:00"),
    ],
)
def test_period_begins_and_ends_by_the_clock_of_its_zone(
    every: str, zone: str, at: str, starts: str, ends: str
) -> None:
    assert budget(every=every, zone=zone).period(ms(at)) == (ms(starts), ms(ends))


@pytest.mark.parametrize("zone", ZONES)
@settings(max_examples=60)
@given(st.data())
def test_periods_follow_each_other_without_a_gap_or_an_overlap(zone: str, data: st.DataObject) -> None:
    every = data.draw(st.sampled_from(["1h", "1d", "1mo"]))
    one = budget(every=every, zone=zone)
    at = data.draw(st.sampled_from(clock_changes(zone))) + data.draw(st.integers(-40 * 24 * HOUR_MS, 40 * 24 * HOUR_MS))

    found = one.period(at)

    assert found.starts <= at < found.ends
    assert SHORTEST_MS[every] <= found.ends - found.starts
    assert {one.period(found.starts), one.period(found.ends - 1), one.period((at + found.ends - 1) // 2)} == {found}
    assert one.period(found.ends).starts == found.ends
    if found.starts not in clock_changes(zone):
        shown = local(found.starts, zone)
        assert shown.endswith({"1h": ":00", "1d": " 00:00", "1mo": "-01 00:00"}[every])


@pytest.mark.parametrize("zone", ZONES)
@settings(max_examples=40)
@given(st.data())
def test_slots_stay_in_their_periods_and_windows(zone: str, data: st.DataObject) -> None:
    budgets = [budget(every="1d", zone=zone, spread="3h"), budget(per="policy", every="1h", zone="UTC", limit=9)]
    chosen = budgets[: data.draw(st.integers(1, 2))]
    times: list[Window] = [data.draw(windows(zone))] if data.draw(st.booleans()) else []
    start = data.draw(st.sampled_from(clock_changes(zone))) + data.draw(st.integers(-2 * 24 * HOUR_MS, 24 * HOUR_MS))
    granule = 125

    found = list(islice(slots(chosen, times, start, start + 20 * 24 * HOUR_MS, granule), 40))

    if not times:
        assert found[0].begins_ms == start
        assert all(min(p.ends for p in one.periods) == after.begins_ms for one, after in pairwise(found))
    for one in found:
        latest = one.opens_ms + one.spread_ms
        assert one.begins_ms <= one.opens_ms <= latest
        assert [each.period(one.begins_ms) for each in chosen] == list(one.periods)
        assert all(period.starts <= one.opens_ms < period.ends for period in one.periods)
        assert all_open(times, one.opens_ms)
        assert all_open(times, latest)
        if one.spread_ms:
            assert all(latest + granule <= period.ends for period in one.periods)
            assert all_open(times, latest + granule - 1)


def test_slots_leave_out_the_time_in_which_windows_are_closed() -> None:
    office = Window.model_validate({"only": "mon-fri 08:00-20:00", "zone": "UTC"})
    friday, monday = ms("2026-03-06T19:00"), ms("2026-03-09T08:00")
    first, second = islice(slots([budget()], [office], friday, friday + 10 * 24 * HOUR_MS, 125), 2)
    assert (first.opens_ms, second.opens_ms) == (friday, monday)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"budget": DAY | {"every": "2h"}}, '`2h`: write "1h", "1d" or "1mo" (or hour, day, month)'),
        ({"budget": DAY | {"limit": 0}}, "greater than or equal to 1"),
        ({"budget": DAY | {"per": "user"}}, "'owner', 'queue' or 'policy'"),
        ({"budget": DAY | {"over": "drop"}}, "'defer', 'review' or 'skip'"),
        ({"budget": DAY | {"zone": "Europe/Zagrb"}}, "did you mean `Europe/Zagreb`?"),
        ({"budget": DAY | {"spread": "21h"}}, "use at most 20h"),
        ({"budget": [DAY, DAY | {"limit": 5}]}, "counts the same as an earlier one: keep the one with the lower limit"),
        ({"budget": DAY | {"unit": "cost"}, "cost": 3}, "has no room for one retry of cost 3: raise its limit"),
        ({"cost": 0}, "greater than or equal to 1"),
    ],
)
def test_policy_refuses_a_wrong_budget_and_says_what_to_write(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError) as refused:
        policy(**fields)
    assert problem in str(refused.value)


def test_policy_reads_one_budget_or_several() -> None:
    assert policy(budget=DAY).budgets == policy(budget=[DAY]).budgets == (budget(),)
    assert budget().describe() == "2 retries per owner and day (UTC)"
    assert (
        budget(unit="cost", limit=1000, per="queue", every="month").describe()
        == "1,000 of cost per queue and month (UTC)"
    )


def test_a_cap_of_an_owner_exhausts_its_messages_earlier() -> None:
    plain = policy(max_retries_ceiling=9)
    rules, caps = Rulebook((plain,), Ladder(), plain.tiers()), Caps({("acme", None): 1, ("acme", "p"): 2})
    acme = Failure("q", retry_count=2, owner="acme", max_retries=9)
    reviewed = decide(acme, rules, 0, 0.0, caps)
    assert isinstance(reviewed, Review)
    assert (reviewed.reason, reviewed.exhausted) == ("exhausted: 2 of 2 retries spent", True)
    assert not isinstance(decide(acme._replace(retry_count=1), rules, 0, 0.0, caps), Review)
    assert not isinstance(decide(acme._replace(owner="other"), rules, 0, 0.0, caps), Review)
    assert not isinstance(decide(acme._replace(owner=None), rules, 0, 0.0, caps), Review)
    assert Caps({("acme", None): 1}).of("acme", "any") == 1


def test_a_cap_does_not_raise_the_most_retries() -> None:
    plain = policy()
    rules = Rulebook((plain,), Ladder(), plain.tiers())
    spent = Failure("q", retry_count=3, owner="acme")
    assert isinstance(decide(spent, rules, 0, 0.0, Caps({("acme", None): 50})), Review)
