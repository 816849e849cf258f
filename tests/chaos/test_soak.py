"""A minute and a half of what `make soak` does for an hour, and the rules it goes by."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.load.paper import Arrival, Entry
from tests.chaos.load.plan import Plan
from tests.chaos.soak.page import complaints
from tests.chaos.soak.rolling import Rolling
from tests.chaos.soak.run import Soak
from tests.chaos.soak.samples import NUMBERS, Sample, trend
from tests.chaos.stage import Stage

PLAN = Plan(1, "soak", light=True)
ONCE = next(number for number in range(100) if PLAN.task(number).form == "headers" and PLAN.task(number).fails == 1)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_minute_under_fire_loses_nothing_and_nothing_grows(single: Stage) -> None:
    soak = Soak(single, minutes=1.5, rate=100, seed=1)
    soak.run(between=10)
    assert soak.verdict.proven, complaints(soak)
    # Whether something grows slowly is for the hour to judge. A leak with every fault shows here too.
    assert not [one for one in soak.trends if one.name in NUMBERS and one.last > 2 * one.first + 10]
    assert len(soak.struck) > 1
    assert soak.verdict.messages > 1_000


def evidence(*arrivals: Arrival) -> Rolling:
    """Message numbers up to ONCE, all planned; only the last one is looked at."""
    found = Rolling(Path(), plan=PLAN)
    found.entries[ONCE] = Entry(PLAN.task(ONCE), 1_000_000, 1_000_002)
    found.arrivals[ONCE] = list(arrivals)
    return found


def arrival(at_ms: int, *, redelivered: bool = False) -> Arrival:
    return Arrival(ONCE, PLAN.task(ONCE).queue, 1, at_ms - 5, at_ms, redelivered, "accept")


def test_a_message_is_forgotten_when_it_is_over_and_counted() -> None:
    judge = evidence(arrival(1_002_000))
    judge.digest(all_of_them=True)
    assert (judge.verdict.messages, judge.verdict.returns, judge.verdict.proven) == (1, 1, True)
    assert (judge.entries, judge.arrivals, judge.under_way) == ({}, {}, 0)


def test_one_that_never_came_is_lost_at_the_end() -> None:
    judge = evidence()
    judge.digest()
    assert (judge.under_way, judge.verdict.lost) == (1, [])
    judge.digest(all_of_them=True)
    assert len(judge.verdict.lost) == 1


def test_a_copy_of_a_forgotten_message_is_a_copy() -> None:
    judge = evidence(arrival(1_002_000))
    judge.digest(all_of_them=True)
    judge.arrivals[ONCE] = [arrival(1_009_000), arrival(1_010_000, redelivered=True)]
    judge.digest()
    assert (judge.verdict.duplicates, judge.verdict.redelivered) == (1, 1)


def test_what_was_never_sent_is_unaccounted_for() -> None:
    judge = evidence(arrival(1_002_000))
    judge.reviews["somebody else's"] += 1
    judge.arrivals[ONCE + 1] = [arrival(1_002_000)]
    judge.digest(all_of_them=True)
    assert len(judge.verdict.unaccounted) == 2


@pytest.mark.parametrize(("growth", "flat"), [(0.0, True), (0.2, True), (3.0, False)])
def test_what_grows_all_the_time_is_not_flat(growth: float, flat: bool) -> None:  # noqa: FBT001  a table
    samples = [Sample(float(at), 100 + growth * at, 30, 5, 9, 9, None, 8, 50, 0) for at in range(60)]
    found = trend("router_mib", samples)
    assert found is not None
    assert found.flat is flat


def test_a_number_that_no_service_could_tell_is_left_out() -> None:
    assert trend("broker_mib", [Sample(1.0, 1, 1, 1, 1, 1, None, 1, 1, 0)] * 10) is None
