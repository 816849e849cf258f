"""What attach has to say about a queue: why it refuses, what may lose messages, what it did."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How serious it is."""

    REFUSAL = "refusal"
    """It cannot be attached; nothing is changed."""
    WARNING = "warning"
    """It can, and there is something to know before trusting it."""
    NOTE = "note"
    """What was taken over or set, so that nothing happens silently."""


@dataclass(frozen=True, slots=True)
class Remark:
    """One line about one queue."""

    level: Level
    text: str


def refusal(text: str) -> Remark:
    return Remark(Level.REFUSAL, text)


def warning(text: str) -> Remark:
    return Remark(Level.WARNING, text)


def note(text: str) -> Remark:
    return Remark(Level.NOTE, text)
