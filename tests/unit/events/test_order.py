from __future__ import annotations

from tarry.events.order import LONGEST_HOLD, MOST_HELD, ReadingClock, StepOrder
from tests.unit.events.test_rows import SCHEDULED, step


def taken(
    order: StepOrder, *steps: object, known: object = None, now: float = 0.0, records_wait: bool = False
) -> list[tuple[str, int, str]]:
    found = order.release(steps, known or {}, now, records_wait=records_wait)  # type: ignore[arg-type]
    return [(one.retry_id, one.round, one.state) for one in found]


def test_steps_of_a_retry_are_put_in_order_and_others_stay_where_they_are() -> None:
    found = taken(
        StepOrder(),
        step("returned", 1, retry="a"),
        step("scheduled", 2, retry="b"),
        step("scheduled", 3, 2, retry="a", detail=SCHEDULED),
        step("scheduled", 4, retry="a", detail=SCHEDULED),
    )
    assert found == [("a", 1, "scheduled"), ("b", 1, "scheduled"), ("a", 1, "returned"), ("a", 2, "scheduled")]


def test_a_step_waits_for_the_one_before_it_and_so_do_those_that_follow() -> None:
    order = StepOrder()
    early = [step("returned", 1), step("scheduled", 2, 2, detail=SCHEDULED)]

    assert order.rounds_to_look_up(early) == {("r1", 1)}
    assert taken(order, *early) == []
    assert order.first_xid == 1
    assert taken(order, step("scheduled", 3, detail=SCHEDULED), now=5.0) == [
        ("r1", 1, "scheduled"),
        ("r1", 1, "returned"),
        ("r1", 2, "scheduled"),
    ]
    assert order.first_xid is None


def test_a_step_does_not_wait_for_what_was_read_before() -> None:
    assert taken(StepOrder(), step("returned"), known={("r1", 1): {"claimed", "scheduled"}}) == [("r1", 1, "returned")]
    assert taken(StepOrder(), step("returned"), known={("r1", 1): {"claimed"}}) == []


def test_a_step_that_waited_names_what_is_known_of_its_retry_by_now() -> None:
    order = StepOrder()
    returned = step("returned", 1, message_id=None, queue=None, detail={"drift_ms": 4})
    assert order.release([returned], {}, 0.0) == []

    found = order.release([step("scheduled", 2, detail=SCHEDULED, owner="acme")], {}, 1.0)
    assert [(one.state, one.queue, one.message_id, one.owner) for one in found] == [
        ("scheduled", "orders", "m1", "acme"),
        ("returned", "orders", "m1", "acme"),
    ]
    assert found[1].detail == {"drift_ms": 4}


def test_what_was_released_lately_need_not_be_looked_up() -> None:
    order = StepOrder()
    assert len(taken(order, step("scheduled", 1, detail=SCHEDULED))) == 1
    assert order.rounds_to_look_up([step("returned", 2)]) == set()
    assert len(taken(order, step("returned", 2))) == 1


def test_a_step_is_released_if_the_one_before_it_never_comes() -> None:
    order = StepOrder()
    assert taken(order, step("returned")) == []
    assert taken(order, now=LONGEST_HOLD - 1) == []
    assert taken(order, now=LONGEST_HOLD) == [("r1", 1, "returned")]


def test_a_step_waits_on_while_the_record_of_the_one_before_it_may_still_be_written() -> None:
    order = StepOrder()
    assert taken(order, step("returned")) == []
    assert taken(order, now=LONGEST_HOLD, records_wait=True) == []
    assert taken(order, now=2 * LONGEST_HOLD - 1) == []
    assert taken(order, step("scheduled", 3, detail=SCHEDULED), now=2 * LONGEST_HOLD - 1) == [
        ("r1", 1, "scheduled"),
        ("r1", 1, "returned"),
    ]


def test_steps_stop_waiting_for_records_if_there_are_too_many() -> None:
    order = StepOrder()
    some = [step("returned", number, retry=f"r{number}") for number in range(MOST_HELD + 1)]
    assert taken(order, *some) == []
    assert len(taken(order, now=LONGEST_HOLD, records_wait=True)) == len(some)


def test_a_later_round_waits_for_the_end_of_the_one_before() -> None:
    order = StepOrder()
    assert taken(order, step("in_review", 5, 2)) == []
    assert taken(order, step("cancelled", 6, 1), known={("r1", 1): {"scheduled"}}) == [
        ("r1", 1, "cancelled"),
        ("r1", 2, "in_review"),
    ]


def test_a_duplicate_waits_for_nothing() -> None:
    assert taken(StepOrder(), step("duplicate", 1, 7)) == [("r1", 7, "duplicate")]


def test_reading_clock_is_no_faster_than_what_is_read_and_than_time() -> None:
    clock = ReadingClock()
    assert clock.advance(1_000.0, 10.0) == 0.0
    assert clock.advance(1_002.0, 15.0) == 2.0  # the reader is behind
    assert clock.advance(1_902.0, 16.0) == 3.0  # the next step is from after an outage
    assert clock.advance(1_901.0, 17.0) == 3.0
