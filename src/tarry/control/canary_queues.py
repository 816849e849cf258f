"""The queues that a canary returns to: what the broker says of them, and whether they have acknowledged the canary.

Most of it is from the management API, which is seconds behind. Ready messages and consumers are asked of the queue
itself, where this user may.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

import structlog

from tarry.broker.management import STATISTICS, Json, Management
from tarry.control.canary import Baseline, Progress, QueueReading, describe_unacknowledged, is_acknowledged
from tarry.control.desk import Desk
from tarry.control.hold import Hold
from tarry.control.standing import PATIENCE
from tarry.errors import BrokerError, BrokerUnreachableError, MissingOnBrokerError
from tarry.router.threads import in_thread

log = structlog.get_logger()

ACKS = ("ack", "deliver_no_ack", "get_no_ack")


@dataclass(slots=True)
class CanaryQueues:
    """What is read goes into the hold's row, so that another process can continue."""

    desk: Desk
    hold: Hold
    baselines: dict[str, Baseline] = field(default_factory=dict)
    _read_late: dict[str, float] = field(default_factory=dict)
    """When a queue was first read that could not be read before the release."""

    @classmethod
    def of(cls, desk: Desk, hold: Hold) -> CanaryQueues:
        return cls(desk, hold, {queue: Baseline(**facts) for queue, facts in (hold.stage_queues or {}).items()})

    async def read_baselines(self, queues: Iterable[str]) -> None:
        """Before the release. A queue that cannot be read now is read while the canary is watched."""
        self.baselines = {}
        for queue in queues:
            try:
                reading = await read_queue(self.desk, queue)
            except BrokerError as error:
                log.warning("a queue could not be read", queue=queue, reason=str(error))
                continue
            if reading is not None:
                self.baselines[queue] = Baseline(reading.depth, reading.acks)

    async def unacknowledged(self, parts: Sequence[Progress]) -> str:
        """Which queues have not acknowledged the canary, and why that is known; empty if all have."""
        try:
            found = [await self._unacknowledged(part) for part in parts if part.open]
        except BrokerError as error:
            return f"the broker does not tell what was acknowledged. {error}"
        return "; ".join(one for one in found if one)

    async def _unacknowledged(self, part: Progress) -> str:
        reading = await read_queue(self.desk, part.queue)
        if reading is None:
            return f"queue {part.queue!r} does not exist"
        baseline = await self._baseline(part, reading)
        if is_acknowledged(part, baseline, reading):
            return ""
        return describe_unacknowledged(part, baseline, reading)

    async def _baseline(self, part: Progress, reading: QueueReading) -> Baseline:
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
        await self.desk.books.change("canary_queues", destination=self.hold.label, queues=self.as_json())
        return self.baselines[queue]

    def as_json(self) -> str:
        return json.dumps({queue: asdict(baseline) for queue, baseline in self.baselines.items()})


async def read_queue(desk: Desk, queue: str) -> QueueReading | None:
    """None if there is no such queue. Raises BrokerError if the management API does not tell its depth."""
    about = await in_thread(lambda: _ask(Management(desk.address, timeout=PATIENCE), queue), "queue reading")
    if about is None:
        return None
    if "messages_unacknowledged" not in about:
        raise BrokerError(f"The management API has no message counts for queue {queue!r}: are its statistics disabled?")
    ready, consumers = int(about["messages_ready"]), int(about.get("consumers") or 0)
    try:
        ready_now, consumers = await desk.binder.counts(queue)
    except BrokerUnreachableError:
        raise
    except MissingOnBrokerError:
        return None
    except BrokerError:  # this user may not ask the queue
        ready_now = 0
    return QueueReading(max(ready, ready_now), int(about["messages_unacknowledged"]), consumers, _acks(about))


def _ask(management: Management, queue: str) -> Json | None:
    """The list of all queues has their depths even where statistics are disabled, or have not begun for a new queue."""
    about = management.queue(queue)
    if about is None or "messages_unacknowledged" in about:
        return about
    return next((one for one in management.queues() if one["name"] == queue), None)


def _acks(about: Json) -> int | None:
    """A queue that nobody has consumed from yet has no statistics, as if they were disabled."""
    statistics = about.get("message_stats")
    return None if statistics is None else sum(int(statistics.get(name) or 0) for name in ACKS)
