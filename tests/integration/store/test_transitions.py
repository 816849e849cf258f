"""The table that the audit's SQL is compared with has no gap and allows no step that would hide a loss."""

from __future__ import annotations

from tarry.core.states import State
from tests.integration.store.transitions import ALLOWED, OPEN, may_follow


def reachable(start: State | None) -> set[State]:
    found: set[State] = set()
    waiting = [start]
    while waiting:
        new = ALLOWED[waiting.pop()] - found
        found |= new
        waiting.extend(new)
    return found


def test_every_state_has_its_row_and_can_be_reached() -> None:
    assert set(ALLOWED) == {None, *State}
    assert reachable(None) == set(State)


def test_every_open_state_can_still_end_well() -> None:
    """Whatever tarry owes somebody can return, and can come before a person."""
    for state in OPEN:
        assert reachable(state) >= {State.RETURNED, State.IN_REVIEW, State.SUCCEEDED}, state


def test_a_later_round_begins_from_any_state() -> None:
    """A message that comes back after all is a new round, not an error."""
    for state in State:
        assert may_follow(state, State.CLAIMED, later_round=True), state
        assert not may_follow(state, State.SUCCEEDED, later_round=True), state


def test_what_was_cancelled_is_not_lost_to_a_late_return() -> None:
    assert may_follow(State.CANCELLED, State.RETURNED)


def test_what_was_skipped_is_not_lost_if_another_router_moved_it() -> None:
    assert {state for state in State if may_follow(state, State.SKIPPED)} == {State.CLAIMED}
    assert may_follow(State.SKIPPED, State.SCHEDULED)
    assert may_follow(State.SKIPPED, State.RETURNED)


def test_steps_that_would_hide_a_loss_are_not_allowed() -> None:
    assert not may_follow(State.CLAIMED, State.SUCCEEDED)
    assert not may_follow(State.HELD, State.SUCCEEDED)
    assert not may_follow(None, State.SUCCEEDED)


def test_only_what_is_owed_or_in_review_can_be_discarded() -> None:
    """By a person, with a reason; and what turns up after all has returned."""
    assert {state for state in State if may_follow(state, State.DISCARDED)} == OPEN | {State.IN_REVIEW}
    assert may_follow(State.DISCARDED, State.RETURNED)
