"""Which state may follow which in the history of a retry. The SQL performs the transitions; tests compare them."""

from __future__ import annotations

from tarry.core.states import State

BEGINNINGS = frozenset({State.CLAIMED, State.SCHEDULED, State.RETURNED, State.IN_REVIEW, State.SKIPPED})
"""The first state of a round in the history: the claim, or a later state if Postgres was unavailable before."""

ALLOWED: dict[State | None, frozenset[State]] = {
    None: BEGINNINGS,
    State.CLAIMED: frozenset(
        {
            State.CLAIMED,
            State.SCHEDULED,
            State.IN_REVIEW,
            State.RETURNED,
            State.UNROUTABLE,
            State.CANCELLED,
            State.DISCARDED,
            State.SKIPPED,
        }
    ),
    State.SCHEDULED: frozenset(
        {
            State.RETURNED,
            State.HELD,
            State.CANCELLED,
            State.UNROUTABLE,
            State.SUCCEEDED,
            State.IN_REVIEW,
            State.DISCARDED,
        }
    ),
    State.HELD: frozenset(
        {
            State.SCHEDULED,  # a throttle has released it
            State.RETURNED,
            State.CANCELLED,
            State.UNROUTABLE,
            State.IN_REVIEW,
            State.DISCARDED,
        }
    ),
    State.UNROUTABLE: frozenset(
        {State.SCHEDULED, State.RETURNED, State.HELD, State.IN_REVIEW, State.CANCELLED, State.DISCARDED}
    ),
    State.RETURNED: frozenset({State.SUCCEEDED, State.IN_REVIEW, State.UNROUTABLE}),
    State.IN_REVIEW: frozenset({State.SCHEDULED, State.RETURNED, State.DISCARDED}),
    State.CANCELLED: frozenset({State.RETURNED}),
    State.SUCCEEDED: frozenset({State.RETURNED}),  # a consumer started it after its success had been presumed
    State.DISCARDED: frozenset({State.RETURNED}),
    State.SKIPPED: frozenset({State.SCHEDULED, State.RETURNED, State.IN_REVIEW}),  # another router moved it meanwhile
}
"""The states that may follow each state within one round; `None` is a new retry. A later round can begin from any
state: the message did fail again, whatever its recorded state."""

OPEN = frozenset({State.CLAIMED, State.SCHEDULED, State.HELD, State.UNROUTABLE})
"""States in which tarry must still deliver the message, to its destination or to review."""


def may_follow(before: State | None, after: State, *, later_round: bool = False) -> bool:
    return after in (BEGINNINGS if later_round else ALLOWED[before])
