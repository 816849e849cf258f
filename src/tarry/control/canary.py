"""The rules of a canary. Pure: what the audit and the broker say is passed in.

* A canary fails if more than a tenth of it fail again.
* It passes once every message has an outcome: its consumer reported success, it was cancelled, or it is one of the
  few that failed again.
* Without reports it passes once the usual time to fail has gone by and its queue has acknowledged it. The broker does
  not say which messages were acknowledged, so one of these must be seen:
  - The queue was empty, with nothing unacknowledged, after the canary had arrived in it; and it has a consumer, or its
    acknowledgements cover the canary. An empty queue without either may have dropped the messages.
  - The queue has acknowledged as many messages as it held at the release, plus the canary. The statistics are seconds
    old, so the count begins with the first one that is certainly from after the release.
* It does not pass on acknowledgements while a failure may be unknown: the intake is paused, or requests pile up.
* Otherwise it does not pass either, however long nothing is heard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CANARIES = (1, 10, 100)
"""How many messages are released in each stage before the rest."""

TOLERATED = 0.1
"""The share of a canary that may fail again."""


@dataclass(frozen=True, slots=True)
class QueueReading:
    """One queue, as the broker describes it."""

    ready: int
    unacked: int
    consumers: int
    acks: int | None
    """Messages acknowledged so far, or delivered without the need to; None if the broker keeps no such statistics."""

    @property
    def depth(self) -> int:
        return self.ready + self.unacked


@dataclass(frozen=True, slots=True)
class Progress:
    """The canary's messages of one queue, by the audit."""

    queue: str
    size: int
    failed: int
    returned: int
    """Messages that have left the held queue: returned to their destination, or cancelled on the way."""
    reported: int
    cancelled: int
    looked: bool
    """Whether the look time has gone by."""
    watched: bool
    """Whether the usual time to fail has gone by as well."""

    @property
    def open(self) -> int:
        """Messages without an outcome."""
        return max(0, self.size - self.failed - self.reported - self.cancelled)

    @property
    def to_acknowledge(self) -> int:
        return max(0, self.size - self.failed - self.cancelled)


@dataclass(frozen=True, slots=True)
class Baseline:
    """One queue when the canary was released."""

    depth: int
    acks: int | None = None
    settled_acks: int | None = None
    """The first count of acknowledgements that includes all from before the release."""

    def settle(self, part: Progress, reading: QueueReading) -> Baseline:
        """With the first reading that is certainly newer. It has what came in just before the release, too."""
        depth = max(self.depth, reading.depth - part.to_acknowledge)
        return Baseline(depth, self.acks, reading.acks or 0)


def has_failed(parts: Sequence[Progress]) -> bool:
    return sum(part.failed for part in parts) > sum(part.size for part in parts) * TOLERATED


def is_reported(parts: Sequence[Progress]) -> bool:
    """Whether every message has an outcome, and the look time has gone by."""
    return bool(parts) and all(part.looked and not part.open for part in parts)


def is_acknowledged(part: Progress, baseline: Baseline, reading: QueueReading) -> bool:
    wanted = part.to_acknowledge
    if not reading.depth and (reading.consumers or _more(reading.acks, baseline.acks or 0) >= max(1, wanted)):
        return True
    return _more(reading.acks, baseline.settled_acks) >= max(1, baseline.depth + wanted)


def describe_unacknowledged(part: Progress, baseline: Baseline, reading: QueueReading) -> str:
    """Why the canary of one queue does not pass."""
    if not reading.consumers:
        return f"queue {part.queue!r} has no consumers ({reading.ready} ready, {reading.unacked} unacknowledged)"
    waiting = f"{reading.ready} ready, {reading.unacked} unacknowledged"
    if reading.acks is None or baseline.settled_acks is None:
        return f"queue {part.queue!r} has not been empty since ({waiting})"
    done = max(0, _more(reading.acks, baseline.settled_acks))
    return f"queue {part.queue!r} acknowledged {done} of {baseline.depth + part.to_acknowledge} ({waiting})"


def _more(now: int | None, before: int | None) -> int:
    """A broker counts from zero after a restart; then fewer are known than there were."""
    return -1 if now is None or before is None else now - before
