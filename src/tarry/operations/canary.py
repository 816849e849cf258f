"""The rules by which a canary passes or fails, and the readings of its queues that they need.

The rules are pure functions: the data of the audit and the broker is passed in.

* A canary fails if more than a tenth of its messages fail again.
* It passes once every message has an outcome: its consumer reported success, it was cancelled, or it is one of the
  few that failed again. If all were cancelled, another canary is released.
* Without reports it passes once the usual time to fail has passed and its queue has acknowledged it. The broker does
  not report which messages were acknowledged, so one of these must be observed:
  - The queue was empty, with nothing unacknowledged, after the canary had arrived in it; and it has a consumer, or its
    acknowledgements cover the canary. An empty queue without either may have dropped the messages.
  - The queue has acknowledged as many messages as it held at the release, plus the canary. The statistics are seconds
    old, so the count begins with the first one that is certainly from after the release.
* It does not pass on acknowledgements while a failure may be unknown: the intake is paused, or requests accumulate.
* In all other cases it does not pass, however long there is no outcome.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

import structlog

from tarry.amqp.management import STATISTICS, Json, Management
from tarry.errors import BrokerError, BrokerUnreachableError, MissingOnBrokerError
from tarry.operations.context import OperatorContext
from tarry.operations.paused_destination import PausedDestination
from tarry.operations.status import PATIENCE
from tarry.tasks import in_thread

CANARIES = (1, 10, 100)
"""How many messages are released in each stage before the rest."""

PROBE = (1,)
"""The same for the release of a breaker, whose rate then grows from 1 a second."""

TOLERATED = 0.1
"""The share of a canary that may fail again."""


def canaries_of(paused: PausedDestination) -> tuple[int, ...]:
    return PROBE if paused.by_breaker else CANARIES


@dataclass(frozen=True, slots=True)
class QueueReading:
    """The state of one queue, as the broker reports it."""

    ready: int
    unacked: int
    consumers: int
    acks: int | None
    """Messages acknowledged so far, or delivered in automatic acknowledgement mode; None if there are no statistics."""

    @property
    def depth(self) -> int:
        return self.ready + self.unacked


@dataclass(frozen=True, slots=True)
class CanaryProgress:
    """The canary's messages of one queue, according to the audit."""

    queue: str
    size: int
    failed: int
    returned: int
    """Messages that have left the held queue: returned to their destination, or cancelled on the way."""
    reported: int
    cancelled: int
    """Cancelled or skipped: their destination does not get them."""
    looked: bool
    """Whether the minimum observation time (`observe`) has passed."""
    watched: bool
    """Whether the usual time to fail has passed as well."""

    @property
    def open(self) -> int:
        """Messages without an outcome."""
        return max(0, self.size - self.failed - self.reported - self.cancelled)

    @property
    def to_acknowledge(self) -> int:
        return max(0, self.size - self.failed - self.cancelled)


@dataclass(frozen=True, slots=True)
class Baseline:
    """The state of one queue when the canary was released."""

    depth: int
    acks: int | None = None
    settled_acks: int | None = None
    """The first count of acknowledgements that includes all those from before the release."""

    def settle(self, part: CanaryProgress, reading: QueueReading) -> Baseline:
        """Starts the count with the first reading that is certainly newer than the release.

        Its depth also includes messages that arrived just before the release.
        """
        depth = max(self.depth, reading.depth - part.to_acknowledge)
        return Baseline(depth, self.acks, reading.acks or 0)


def has_failed(parts: Sequence[CanaryProgress]) -> bool:
    return sum(part.failed for part in parts) > sum(part.size for part in parts) * TOLERATED


def is_reported(parts: Sequence[CanaryProgress]) -> bool:
    """Whether every message has an outcome, and the minimum observation time has passed."""
    return bool(parts) and all(part.looked and not part.open for part in parts)


def is_void(parts: Sequence[CanaryProgress]) -> bool:
    """Whether every message was cancelled or skipped: it tells nothing about the destination; another one is needed."""
    return bool(parts) and all(part.cancelled == part.size for part in parts)


def is_acknowledged(part: CanaryProgress, baseline: Baseline, reading: QueueReading) -> bool:
    wanted = part.to_acknowledge
    if not reading.depth and (reading.consumers or _more(reading.acks, baseline.acks or 0) >= max(1, wanted)):
        return True
    return _more(reading.acks, baseline.settled_acks) >= max(1, baseline.depth + wanted)


def describe_unacknowledged(part: CanaryProgress, baseline: Baseline, reading: QueueReading) -> str:
    """Why the canary of one queue does not pass."""
    if not reading.consumers:
        return f"queue {part.queue!r} has no consumers ({reading.ready} ready, {reading.unacked} unacknowledged)"
    waiting = f"{reading.ready} ready, {reading.unacked} unacknowledged"
    if reading.acks is None or baseline.settled_acks is None:
        return f"queue {part.queue!r} has not been empty since ({waiting})"
    done = max(0, _more(reading.acks, baseline.settled_acks))
    return f"queue {part.queue!r} acknowledged {done} of {baseline.depth + part.to_acknowledge} ({waiting})"


def _more(now: int | None, before: int | None) -> int:
    """The increase since `before`; -1 if a count is unknown.

    It can be negative after a restart of the broker, which then counts from zero.
    """
    return -1 if now is None or before is None else now - before


log = structlog.get_logger()

ACKS = ("ack", "deliver_no_ack", "get_no_ack")


@dataclass(slots=True)
class CanaryQueues:
    """Reads a canary's queues. Readings are stored in the paused destination's row, so another process can continue."""

    context: OperatorContext
    paused: PausedDestination
    baselines: dict[str, Baseline] = field(default_factory=dict)
    _read_late: dict[str, float] = field(default_factory=dict)
    """When each queue that could not be read before the release was first read."""

    @classmethod
    def of(cls, context: OperatorContext, paused: PausedDestination) -> CanaryQueues:
        return cls(context, paused, {queue: Baseline(**facts) for queue, facts in (paused.stage_queues or {}).items()})

    async def read_baselines(self, queues: Iterable[str]) -> None:
        """Called before the release. A queue that cannot be read now is read while the canary is watched."""
        self.baselines, self._read_late = {}, {}
        for queue in queues:
            try:
                reading = await read_queue(self.context, queue)
            except BrokerError as error:
                log.warning("queue could not be read", queue=queue, reason=str(error))
                continue
            if reading is not None:
                self.baselines[queue] = Baseline(reading.depth, reading.acks)

    async def unacknowledged(self, parts: Sequence[CanaryProgress]) -> str:
        """Which queues have not acknowledged the canary, and the evidence for it; empty if all have."""
        try:
            found = [await self._unacknowledged(part) for part in parts if part.open]
        except BrokerError as error:
            return f"the broker does not report what was acknowledged. {error}"
        return "; ".join(one for one in found if one)

    async def _unacknowledged(self, part: CanaryProgress) -> str:
        reading = await read_queue(self.context, part.queue)
        if reading is None:
            return f"queue {part.queue!r} does not exist"
        baseline = await self._baseline(part, reading)
        if is_acknowledged(part, baseline, reading):
            return ""
        return describe_unacknowledged(part, baseline, reading)

    async def _baseline(self, part: CanaryProgress, reading: QueueReading) -> Baseline:
        """Acknowledgements are counted from the first statistics that are certainly newer than the known depth."""
        queue, now = part.queue, asyncio.get_running_loop().time()
        known = self.baselines.get(queue)
        if known is None:
            self._read_late[queue] = now
            self.baselines[queue] = Baseline(reading.depth, reading.acks)
        elif known.settled_acks is None and now - self._read_late.get(queue, float("-inf")) > STATISTICS:
            self.baselines[queue] = known.settle(part, reading)
        else:
            return known
        await self.context.store.change("canary_queues", destination=self.paused.label, queues=self.as_json())
        return self.baselines[queue]

    def as_json(self) -> str:
        return json.dumps({queue: asdict(baseline) for queue, baseline in self.baselines.items()})


async def read_queue(context: OperatorContext, queue: str) -> QueueReading | None:
    """None if there is no such queue. Raises BrokerError if the management API does not report its depth."""
    about = await in_thread(lambda: _ask(Management(context.address, timeout=PATIENCE), queue), "queue reading")
    if about is None:
        return None
    if "messages_unacknowledged" not in about:
        raise BrokerError(f"The management API has no message counts for queue {queue!r}: are its statistics disabled?")
    ready, consumers = int(about["messages_ready"]), int(about.get("consumers") or 0)
    try:
        ready_now, consumers = await context.binder.counts(queue)
    except BrokerUnreachableError:
        raise
    except MissingOnBrokerError:
        return None
    except BrokerError:  # this user has no permission for the queue
        ready_now = 0
    return QueueReading(max(ready, ready_now), int(about["messages_unacknowledged"]), consumers, _acks(about))


def _ask(management: Management, queue: str) -> Json | None:
    """Falls back to the list of all queues, which has depths even without statistics (disabled, or a new queue)."""
    about = management.queue(queue)
    if about is None or "messages_unacknowledged" in about:
        return about
    return next((one for one in management.queues() if one["name"] == queue), None)


def _acks(about: Json) -> int | None:
    """A queue that no consumer has read from yet has no statistics, as if they were disabled."""
    statistics = about.get("message_stats")
    return None if statistics is None else sum(int(statistics.get(name) or 0) for name in ACKS)
