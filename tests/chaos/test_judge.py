"""The judge on evidence made by hand: one thing wrong at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.evidence import Evidence, Row
from tests.chaos.judge import Allowance, Verdict, judge
from tests.chaos.load.paper import Arrival, Did, Entry
from tests.chaos.load.plan import MAX_RETRIES, REJECTS, SCHEDULE_MS, Plan, Task, read_body

BEGAN = 1_000_000
FIRST = SCHEDULE_MS[0]


def arrival(round_: int, at_ms: int, did: Did, *, queue: str = REJECTS, redelivered: bool = False) -> Arrival:
    due = at_ms - 5 if round_ else 0
    return Arrival(1, queue, round_, due, at_ms, redelivered, did)


def good(*more: Arrival, fails: int = 1, tries: int = 1) -> Evidence:
    """One message that failed once and came back in time, and whatever else."""
    evidence = Evidence(Path())
    evidence.entries[1] = Entry(Task(1, "m1", REJECTS, "reject", fails), BEGAN, BEGAN + 2, tries)
    evidence.arrivals[1] = [arrival(0, BEGAN + 10, "reject"), arrival(1, BEGAN + 20 + FIRST, "accept"), *more]
    evidence.rows[("m1", REJECTS)] = Row("returned", 1, 1)
    return evidence


def verdict(evidence: Evidence, allowance: Allowance | None = None) -> Verdict:
    return judge(evidence, allowance or Allowance(), [])


def test_a_message_that_came_back_in_time_is_proven() -> None:
    found = verdict(good())
    assert found.proven
    assert (found.messages, found.returns, found.drift(0.5)) == (1, 1, 5)


def test_one_that_never_came_back_is_lost() -> None:
    evidence = good()
    evidence.arrivals[1].pop()
    assert len(verdict(evidence).lost) == 1
    assert not verdict(evidence).proven


def test_a_return_too_soon_is_early_whatever_its_due_header_says() -> None:
    evidence = good()
    evidence.arrivals[1][1] = arrival(1, BEGAN + 9 + FIRST, "accept")
    assert len(verdict(evidence).early) == 1


def test_a_return_before_its_due_time_is_early_unless_the_clock_was_wrong() -> None:
    evidence = good()
    evidence.arrivals[1][1] = Arrival(
        1, REJECTS, 1, BEGAN + 60_000, BEGAN + 20 + FIRST, redelivered=False, did="accept"
    )
    assert len(verdict(evidence).early) == 1
    found = verdict(evidence, Allowance(clock=False))
    assert (found.proven, found.drift(0.5)) == (True, 10)


def test_a_copy_counts_unless_the_broker_or_the_producer_made_it() -> None:
    late = BEGAN + 50 + FIRST
    ours = verdict(good(arrival(1, late, "accept")))
    assert (ours.duplicates, ours.proven) == (1, False)
    assert verdict(good(arrival(1, late, "accept")), Allowance(1)).proven
    brokers = verdict(good(arrival(1, late, "accept", redelivered=True)))
    assert (brokers.duplicates, brokers.redelivered) == (0, 1)
    producers = verdict(good(arrival(0, BEGAN + 11, "reject"), tries=2))
    assert (producers.duplicates, producers.sent_twice) == (0, 1)


def test_what_nobody_planned_is_unaccounted_for() -> None:
    evidence = good()
    evidence.reviews["m1"] += 1
    evidence.reasons["m1"] = "the origin queue 'x' does not exist"
    assert len(verdict(evidence).unaccounted) == 2  # it is in review, and the audit says otherwise
    allowed = Allowance(reviews="does not exist", review_queues=(REJECTS,), audit=False)
    assert verdict(evidence, allowed).diverted == 1


@pytest.mark.parametrize("more", [arrival(1, BEGAN + 50 + FIRST, "accept", queue="else"), arrival(0, 0, "damaged")])
def test_a_wrong_queue_and_a_damaged_body_are_unaccounted_for(more: Arrival) -> None:
    assert verdict(good(more)).unaccounted


def test_an_audit_that_says_something_else_is_unaccounted_for() -> None:
    evidence = good()
    evidence.rows[("m1", REJECTS)] = Row("claimed", 2, 1)
    assert verdict(evidence).complaints() == [
        "unaccounted: 1, for example m1 is claimed in round 2 in the audit",
    ]


def test_messages_of_a_deleted_queue_are_forgiven_up_to_the_brokers_count() -> None:
    evidence = good()
    evidence.arrivals[1].pop()
    assert verdict(evidence, Allowance(gone=1, audit=False)).gone == 1
    assert verdict(evidence, Allowance(gone=0, audit=False)).lost


def test_the_same_seed_plans_the_same_and_every_fate_is_planned() -> None:
    tasks = [Plan(7, "x").task(number) for number in range(2_000)]
    assert tasks == [Plan(7, "x").task(number) for number in range(2_000)]
    assert {task.fails for task in tasks} == set(range(MAX_RETRIES + 2))
    assert any(task.final for task in tasks)
    assert any(task.hint_ms for task in tasks)


def test_a_body_that_was_changed_is_known() -> None:
    task = Plan(1, "x").task(3)
    assert read_body(task.body()) == task
    assert read_body(task.body().replace(b"x-3", b"x-4")) is None


def test_a_round_that_nobody_asked_for_is_a_copy() -> None:
    found = verdict(good(arrival(2, BEGAN + 9_000, "accept")))
    assert (found.duplicates, found.proven) == (1, False)


def test_the_failure_of_a_copy_may_begin_a_round() -> None:
    """The second copy failed while the first was back in round 1: its wait is round 2, and no shorter for that."""
    evidence = good(fails=2, tries=2)
    evidence.arrivals[1] = [
        arrival(0, BEGAN + 10, "reject"),
        arrival(0, BEGAN + 1_100, "reject"),
        arrival(1, BEGAN + 1_200, "reject"),
        arrival(2, BEGAN + 1_110 + SCHEDULE_MS[1], "accept"),
    ]
    evidence.rows[("m1", REJECTS)] = Row("returned", 2, 2)
    assert verdict(evidence).proven


def test_a_round_of_an_older_request_is_a_copy_if_copies_are_explained() -> None:
    evidence = good(fails=2)
    evidence.arrivals[1] = [
        arrival(0, BEGAN + 10, "reject"),
        arrival(1, BEGAN + 1_200, "reject"),
        arrival(2, BEGAN + 1_200 + SCHEDULE_MS[1] - 40, "accept"),
    ]
    evidence.rows[("m1", REJECTS)] = Row("returned", 2, 2)
    assert len(verdict(evidence).early) == 1
    assert verdict(evidence, Allowance(1)).proven
    assert verdict(evidence, Allowance(1)).duplicates == 1
