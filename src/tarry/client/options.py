"""What a consumer may choose; every default is meant to be right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tarry.client.classing import Classes
from tarry.core.names import Names

LONGEST_REASON = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One for each consumer, or one for all."""

    names: Names = field(default_factory=Names)
    """The installation's names; only another prefix than `retry.` makes a difference."""
    classes: Classes = field(default_factory=Classes)
    """Which errors are final, retryable or rate limited."""
    redact: Callable[[str], str] | None = None
    """Takes secrets out of an error's text before it leaves the process."""
    longest_reason: int = LONGEST_REASON
    """Characters of an error's text that travel."""
    plain: Literal["request", "reject"] = "request"
    """What becomes of a failure that says neither class nor wait. A request carries its reason. A reject carries the
    message byte for byte and nothing else, and needs the queue to be attached (`tarry attach`): else it is a loss."""
    report: bool = True
    """Whether successes of retried messages are reported to the audit."""
    report_batch: int = 200
    """Successes in one report."""
    report_seconds: float = 1.0
    """The longest that a success waits to be reported."""
    pauses: tuple[float, ...] = (0.1, 0.5, 1, 2, 5, 5, 5, 5)
    """Seconds between tries while a request cannot be published; after the last the message is requeued."""
