"""The states of a retry. The queries in `store/sql` decide which state follows which."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """The state of a retry."""

    CLAIMED = "claimed"
    """A router has taken the request and has not received the broker's confirm yet."""
    SCHEDULED = "scheduled"
    """The broker holds it in a tier."""
    RETURNED = "returned"
    """The tap recorded it on its way to the origin queue."""
    SUCCEEDED = "succeeded"
    """A consumer reported success, or reported nothing and no failure arrived within the quiet time."""
    IN_REVIEW = "in_review"
    """It is in the review queue, where a person decides."""
    CANCELLED = "cancelled"
    """An operator cancelled it before it came due."""
    HELD = "held"
    """Its destination is paused."""
    UNROUTABLE = "unroutable"
    """It came due and its destination did not exist."""
    DISCARDED = "discarded"
    """An operator discarded it, or wrote it off as lost, with a reason."""
    SKIPPED = "skipped"
    """A rule of its policy ended it, with a reason: its message is not wanted any more."""


LONGEST_REASON = 500
"""Characters of the reason of a skip that are kept."""

NOT_WANTED = "not eligible"
"""The reason of a skip, if none is given."""


class Note(StrEnum):
    """Events in the history that do not change the state."""

    DUPLICATE = "duplicate"
    OVERDUE = "overdue"
    MISSING = "missing"
    """Nothing on the broker can contain it, at two audit passes in a row."""
    RECOVERED = "recovered"
    STARTED = "started"
    """A consumer began an attempt after its success had been presumed."""
    STUCK = "stuck"
    """An attempt without an outcome was recovered: retried, or sent to review."""
    LAYOVER = "layover"
    """A leg of a delay that is longer than the ladder holds was sent."""
