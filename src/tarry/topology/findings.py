"""One finding of `tarry topology verify`: what is wrong, where, and the command that fixes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

APPLY = "tarry topology apply"
MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. A finding of the level `wrong` makes verify fail; a `note` does not."""

    check: str
    things: tuple[str, ...]
    """The queues, exchanges or bindings that the finding is about."""
    problem: str
    mend: str
    level: Literal["wrong", "note"] = "wrong"

    @property
    def subject(self) -> str:
        """All names if there are few, otherwise the first ones and a count."""
        if len(self.things) <= MOST_NAMED:
            return ", ".join(self.things)
        return f"{', '.join(self.things[:MOST_NAMED])} and {len(self.things) - MOST_NAMED} more"

    def __str__(self) -> str:
        return f"{self.subject}: {self.problem}. Fix: {self.mend}"
