"""One finding of `tarry topology verify`: what is wrong, with what, and the command that mends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

APPLY = "tarry topology apply"
MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """`wrong` makes verify fail; a `note` is worth knowing and does not."""

    check: str
    things: tuple[str, ...]
    """The queues, exchanges or bindings it is about."""
    problem: str
    mend: str
    level: Literal["wrong", "note"] = "wrong"

    @property
    def subject(self) -> str:
        """All of them when few, else the first ones and a count."""
        if len(self.things) <= MOST_NAMED:
            return ", ".join(self.things)
        return f"{', '.join(self.things[:MOST_NAMED])} and {len(self.things) - MOST_NAMED} more"

    def __str__(self) -> str:
        return f"{self.subject}: {self.problem}. Mend: {self.mend}"
