"""Options of a consumer; the defaults suit most consumers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tarry.client.classify import Classes
from tarry.core.names import Names

LONGEST_REASON = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a consumer. Several consumers can share one instance."""

    names: Names = field(default_factory=Names)
    """The installation's names; set it only if the prefix is not `retry.`."""
    classes: Classes = field(default_factory=Classes)
    """Which errors are final, retryable or rate limited."""
    owner: str | Callable[[Mapping[str, Any], bytes], str | None] | None = None
    """Whom a failed message belongs to (a user, a tenant, an organisation): a name, or a function of its headers and
    body. A message that has the header `owner` keeps it. A message that is rejected (`plain`) gets none."""
    redact: Callable[[str], str] | None = None
    """Removes secrets from an error's text before the text leaves the process."""
    longest_reason: int = LONGEST_REASON
    """The maximum number of characters of an error's text that are sent."""
    plain: Literal["request", "reject"] = "request"
    """What to do with a failure that specifies neither a class nor a wait. `request` publishes a retry request, which
    carries the reason. `reject` rejects the message: it is dead-lettered byte for byte, without a reason. It requires
    the queue to be attached (`tarry attach`); otherwise the message is lost."""
    report: bool = True
    """Whether successes of retried messages are reported to the audit."""
    report_starts: bool = True
    """Whether attempts at retried messages that take longer than `report_seconds` are reported as started, so that a
    hung one is found and never presumed to have succeeded. A pika handler that runs in the thread of its
    BlockingConnection is reported before it begins, with one more publish for each retried message; nothing could be
    sent while it hangs. Without `report` no start is reported."""
    consumer: str | None = None
    """The name of this consumer in reports of starts; by default its host and process id."""
    report_batch: int = 200
    """The maximum number of successes in one report."""
    report_seconds: float = 1.0
    """The longest time that a success waits to be reported, in seconds."""
    pauses: tuple[float, ...] = (0.1, 0.5, 1, 2, 5, 5, 5, 5)
    """Seconds between attempts to publish a request; after the last attempt the message is requeued."""
