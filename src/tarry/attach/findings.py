"""Findings of attach about a queue: why it refuses, what may lose messages, what it did."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How serious a finding is."""

    REFUSAL = "refusal"
    """The queue cannot be attached; nothing is changed."""
    WARNING = "warning"
    """The queue can be attached, but the user should know this first."""
    NOTE = "note"
    """Something was taken over or set; reported so that nothing changes silently."""


@dataclass(frozen=True, slots=True)
class AttachFinding:
    """One finding about one queue."""

    level: Level
    text: str


def refusal(text: str) -> AttachFinding:
    return AttachFinding(Level.REFUSAL, text)


def warning(text: str) -> AttachFinding:
    return AttachFinding(Level.WARNING, text)


def note(text: str) -> AttachFinding:
    return AttachFinding(Level.NOTE, text)
