"""The life of a retry. Every state and every allowed step is in the one table below.

The audit, the documentation and the tests read this table; nothing else decides what may follow what.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a retry stands."""

    CLAIMED = "claimed"
    """A router took the request and has not had the broker's confirm yet."""
    SCHEDULED = "scheduled"
    """The broker holds it in a tier."""
    RETURNED = "returned"
    """The tap saw it pass on its way to the origin queue."""
    SUCCEEDED = "succeeded"
    """A consumer reported success, or no failure came back for the quiet time."""
    IN_REVIEW = "in_review"
    """A person decides."""
    CANCELLED = "cancelled"
    """An operator cancelled it before it came due."""
    HELD = "held"
    """Its destination is paused."""
    UNROUTABLE = "unroutable"
    """It came due and its destination was not there."""
    DISCARDED = "discarded"
    """An operator threw it away, or wrote it off as lost, with a reason."""


class Note(StrEnum):
    """Facts written into the history that change no state."""

    DUPLICATE = "duplicate"
    OVERDUE = "overdue"
    RECOVERED = "recovered"


BEGINNINGS = frozenset({State.CLAIMED, State.SCHEDULED, State.RETURNED, State.IN_REVIEW})
"""The first that the history has of a round: the claim, or a later step if Postgres was away before it."""

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
    State.HELD: frozenset({State.RETURNED, State.CANCELLED, State.UNROUTABLE, State.DISCARDED}),
    State.UNROUTABLE: frozenset(
        {State.SCHEDULED, State.RETURNED, State.HELD, State.IN_REVIEW, State.CANCELLED, State.DISCARDED}
    ),
    State.RETURNED: frozenset({State.SUCCEEDED, State.IN_REVIEW, State.UNROUTABLE}),
    State.IN_REVIEW: frozenset({State.SCHEDULED, State.RETURNED, State.DISCARDED}),
    State.CANCELLED: frozenset({State.RETURNED}),
    State.SUCCEEDED: frozenset(),
    State.DISCARDED: frozenset({State.RETURNED}),
}
"""What may follow each state within one round; `None` is a retry not seen before. A later round begins from any state:
a message that fails again is a fact, whatever was believed of it."""

OPEN = frozenset({State.CLAIMED, State.SCHEDULED, State.HELD, State.UNROUTABLE})
"""States in which tarry still owes the message to somebody."""


def may_follow(before: State | None, after: State, *, later_round: bool = False) -> bool:
    return after in (BEGINNINGS if later_round else ALLOWED[before])


def mermaid() -> str:
    """The table as a diagram, for the documentation."""
    steps = [
        f"    {before or '[*]'} --> {after}"
        for before, allowed in ALLOWED.items()
        for after in sorted(allowed, key=list(State).index)
    ]
    return "\n".join(["stateDiagram-v2", *steps, "    returned --> claimed: it failed again, the next round"])
