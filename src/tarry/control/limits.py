"""How patient and how generous the operator's actions are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Limits:
    """One set for a whole installation."""

    margin: timedelta = timedelta(seconds=2)
    """A binding confirmed so long before the due moment was there in time, whatever the clocks and the cluster do."""
    word: timedelta = timedelta(seconds=10)
    """So long past the due moment the tap's word is waited for; after that the answer is `pending`."""
    linger: timedelta = timedelta(minutes=2)
    """A cancel's binding stays so long after the message was diverted: a copy from a crash may follow it."""
    most_cancels: int = 500
    """Cancels and retry-nows under way at once on a broker before 3.11, whose direct exchanges get slow with more."""
    longest_watch: timedelta = timedelta(minutes=15)
    """A canary is watched no longer than so for its usual time to fail; after as long a success is presumed, too."""
