"""A hand in the review queue: reads it from its head, keeps what is wanted, and puts everything else back.

A queue cannot be searched without taking its messages out, so for the few seconds of a look all of it is in this hand,
unacknowledged. Whatever happens to us, the broker has it back the moment the connection ends: nothing leaves the queue
but by an acknowledgement. Other consumers share the queue with us meanwhile, or find it empty.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tarry.broker.address import Address
from tarry.contract.request import Delivery
from tarry.control.review import grip as grips
from tarry.control.review.grip import Grip

QUIET = 0.1
"""Seconds without a delivery after which the queue is asked whether that was all."""

LONGEST_SILENCE = 10.0
"""Seconds after which a queue that has messages and delivers none is given up."""

FLOOD = 100_000
"""Messages more than twice those that were there, after which a look has an end."""

Wanted = Callable[[Delivery], bool]


@dataclass(frozen=True, slots=True)
class Held:
    """A message in the hand; it has to be settled."""

    delivery: Delivery
    grip: Grip


@dataclass(slots=True)
class Look:
    """What one look through the queue found."""

    kept: list[Held] = field(default_factory=list)
    seen: int = 0
    whole: bool = False
    """Whether the look came to the queue's end."""


@dataclass(slots=True)
class Hand:
    """For one look, and the work on what it kept."""

    address: Address
    queue: str
    wanted: Wanted
    room: int
    """Messages that may still be kept."""
    bytes_left: int
    _grips: list[Grip] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, address: Address, queue: str, wanted: Wanted, *, most: int, most_bytes: int
    ) -> AsyncIterator[Hand]:
        """What is still in the hand when the block ends is back in the queue."""
        hand = cls(address, queue, wanted, most, most_bytes)
        try:
            yield hand
        finally:
            await asyncio.gather(*(grip.close() for grip in hand._grips))

    async def look(self) -> Look:
        """From the head to the end, or until the hand is full. All that is not wanted is back in the queue after it."""
        grip = await self._another()
        there = await grip.ready()
        await grip.reach(grips.MOST)
        whole = await self._until_the_end(there)
        await asyncio.gather(*(one.stop() for one in self._grips))
        for one in self._grips:
            one.put_others_back()
        kept = [Held(delivery, one) for one in self._grips for delivery in one.kept]
        return Look(kept, self._seen, whole)

    def ack(self, held: Iterable[Held]) -> None:
        """Out of the queue, for good."""
        for grip, tags in _by_grip(held).items():
            grip.ack(tags)

    def put_back(self, held: Iterable[Held]) -> None:
        for grip, tags in _by_grip(held).items():
            if grip.is_open:
                grip.put_back(tags)

    def check(self) -> None:
        """Raises if a connection is gone: what it held is in the queue again, and no longer ours to act on."""
        for grip in self._grips:
            grip.check()

    async def settled(self) -> None:
        """Returns once the broker has seen every acknowledgement; raises if a connection did not live so long."""
        for grip in self._grips:
            await grip.ready()

    @property
    def _seen(self) -> int:
        return sum(grip.seen for grip in self._grips)

    @property
    def _is_full(self) -> bool:
        return self.room <= 0 or self.bytes_left <= 0

    async def _another(self) -> Grip:
        self._grips.append(await Grip.open(self.address, self.queue, self._take))
        return self._grips[-1]

    def _take(self, delivery: Delivery) -> bool:
        if self._is_full or not self.wanted(delivery):
            return False
        self.room -= 1
        self.bytes_left -= len(delivery.body)
        return True

    async def _until_the_end(self, there: int) -> bool:
        """What was ready at the start comes before what arrived since. A queue that grows faster than it is read has no
        end, and is left.
        """
        silence = 0.0
        while not self._is_full:
            before, last = self._seen, self._grips[-1]
            if last.full:
                await (await self._another()).reach(min(max(grips.MOST, before // 10), grips.LARGEST))
            await asyncio.sleep(QUIET)
            self.check()
            silence = silence + QUIET if self._seen == before and not last.full else 0.0
            if silence and not await last.ready():
                return True
            if silence > LONGEST_SILENCE or self._seen > 2 * there + FLOOD:
                return False
        return False


def _by_grip(held: Iterable[Held]) -> dict[Grip, list[int]]:
    found: defaultdict[Grip, list[int]] = defaultdict(list)
    for one in held:
        found[one.grip].append(one.delivery.tag)
    return found
