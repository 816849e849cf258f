"""Working on a job, pass by pass: look for its messages in the queue, act on those in hand, put the others back.

Safe against everything that can happen in between. A message is sent only while it is in our hand, unacknowledged, and
only after the books have it marked; it leaves the queue only after its sending is recorded. Whoever goes on after a
crash finds in the queue what was not finished, and in the books how far it was.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tarry.contract.request import Delivery
from tarry.control.desk import Desk
from tarry.control.review.card import Key, key_of, read_card
from tarry.control.review.doubt import resolve
from tarry.control.review.hand import Hand, Held, Look
from tarry.control.review.job import Job
from tarry.control.review.jobs import acceptance, get, manner_of
from tarry.control.review.pacing import Pacer
from tarry.control.review.resend import House
from tarry.control.review.sending import Discard, Found, Handler, Redrive, give_back
from tarry.errors import AuditError, ConflictError
from tarry.router.destinations import Destinations
from tarry.router.keep import sleep_unless

HAND = 7_312_010
"""The advisory lock of whoever looks through the queue: two at once would each take the other's messages for gone."""

MOST = 5_000
"""Messages in hand at once."""
MOST_BYTES = 64 << 20
LONGEST_HOLD = 60
"""Seconds of work that are taken in hand at once: the broker takes back what is not settled within half an hour."""

BATCH = 200
PAUSE = 1.0
LOOKS = 3
"""A message that so many looks, with pauses between them, did not find has been taken by another consumer."""

FRAME_MAX = 131_072


async def work(desk: Desk, job_id: str, *, runner: str, stop: asyncio.Event | None = None) -> Job:
    """Until it is done, or told to stop; only one at a time works on a job."""
    job = await get(desk, job_id)
    async with desk.books.lock(_lock_number(job.id)) as page:
        if page is None:
            raise ConflictError(f"{job.runner or 'Somebody else'} works on job {job.id} right now.")
        begun = await desk.books.one("review_begin", job=job.id, runner=runner)
        if begun is None:
            return job
        problem: str | None = "it was cut off"
        try:
            async with _Worker.open(desk, job, stop or asyncio.Event(), first_run=begun[0] == 1) as worker:
                await worker.run()
            problem = None
        except Exception as error:
            problem = str(error) or type(error).__name__
            raise
        finally:
            with suppress(AuditError):
                await desk.books.rows("review_leave", job=job.id, problem=problem)
    return await get(desk, job.id)


async def work_or_wait(desk: Desk, job_id: str, *, runner: str, stop: asyncio.Event) -> Job:
    """The same for somebody who wants it done and does not mind by whom."""
    while not stop.is_set():
        try:
            return await work(desk, job_id, runner=runner, stop=stop)
        except ConflictError:
            if (job := await get(desk, job_id)).state in ("done", "stopped"):
                return job
            await sleep_unless(stop, PAUSE)
    return await get(desk, job_id)


def _lock_number(job_id: str) -> int:
    return int.from_bytes(uuid.UUID(job_id).bytes[:8], signed=True)


@asynccontextmanager
async def the_hand(desk: Desk, stop: asyncio.Event) -> AsyncIterator[bool]:
    """The right to look through the queue, as soon as nobody else does; False if it is time to stop before that."""
    while not stop.is_set():
        async with desk.books.lock(HAND) as page:
            if page is not None:
                yield True
                return
        await sleep_unless(stop, PAUSE / 5)
    yield False


@dataclass(slots=True)
class _Worker:
    desk: Desk
    job: Job
    handler: Handler
    stop: asyncio.Event
    """Set by whoever runs us."""
    pacer: Pacer
    look_for_leftovers: bool
    """An earlier run may have been killed between a record and its acknowledgement."""
    halted: asyncio.Event = field(default_factory=asyncio.Event)
    _missed: Counter[Key] = field(default_factory=Counter)

    @classmethod
    @asynccontextmanager
    async def open(cls, desk: Desk, job: Job, stop: asyncio.Event, *, first_run: bool) -> AsyncIterator[_Worker]:
        destinations = Destinations(desk.address, desk.names, time.monotonic)
        handler: Handler = Discard(desk, job)
        if job.kind == "redrive":
            house = House(acceptance(desk), desk.topology.rules, FRAME_MAX)
            handler = Redrive(desk, job, await manner_of(desk, job), house, destinations)
        worker = cls(desk, job, handler, stop, Pacer(job.rate, time.monotonic), look_for_leftovers=not first_run)
        beating = asyncio.create_task(worker._beat())
        try:
            yield worker
        finally:
            beating.cancel()
            await destinations.close()

    async def run(self) -> None:
        while not self.halted.is_set():
            await self.desk.books.rows("review_moved_on", job=self.job.id)
            items = await self._items()
            if not items:
                return
            if not await self._pass(items):
                await sleep_unless(self.halted, PAUSE)

    async def _items(self) -> dict[Key, str]:
        """What is left, by key; with what is done, while leftovers of it may be in the queue."""
        rows = await self.desk.books.rows("review_open_items", job=self.job.id, all=self.look_for_leftovers)
        return {(row[0], row[1]): row[2] for row in rows}

    async def _pass(self, items: dict[Key, str]) -> bool:
        """Whether anything came of it."""
        found: set[Key] = set()

        def wanted(delivery: Delivery) -> bool:
            key = key_of(delivery)
            if key is None or key in found or key not in items:
                return False
            found.add(key)
            return True

        most = min(len(items), self._most_in_hand)
        names = self.desk.names
        async with Hand.open(self.desk.address, names.review_queue, wanted, most=most, most_bytes=MOST_BYTES) as hand:
            async with the_hand(self.desk, self.halted) as ours:
                if not ours:
                    return False
                look = await hand.look()
                await hand.settled()
            await self._act(hand, look, items)
            await hand.settled()
        if look.whole:
            self.look_for_leftovers = False
            await self._not_found({key: state for key, state in items.items() if key not in found})
        return bool(look.kept)

    @property
    def _most_in_hand(self) -> int:
        return MOST if self.job.rate is None else max(1, min(MOST, int(self.job.rate * LONGEST_HOLD)))

    async def _act(self, hand: Hand, look: Look, items: dict[Key, str]) -> None:
        cards: list[Found] = [(held, read_card(held.delivery)) for held in look.kept]
        by_state: dict[str, list[Found]] = {"done": [], "sending": [], "waiting": []}
        for held, card in cards:
            if card.key is not None:
                by_state[items[card.key]].append((held, card))
        hand.ack([held for held, _ in by_state["done"]])
        await self._send(hand, by_state["waiting"])
        await self._clear_doubts(hand, by_state["sending"])

    async def _send(self, hand: Hand, waiting: Sequence[Found]) -> None:
        size = self.pacer.batch(BATCH)
        for start in range(0, len(waiting), size):
            batch = waiting[start : start + size]
            await sleep_unless(self.halted, self.pacer.wait(len(batch)))
            if self.halted.is_set():
                hand.put_back(held for held, _ in waiting[start:])
                return
            hand.check()
            settled = await self.handler(batch)
            hand.ack(settled.gone)
            hand.put_back(settled.back)

    async def _clear_doubts(self, hand: Hand, doubtful: Sequence[Found]) -> None:
        """These are in the queue although an earlier run was about to send them."""
        if not doubtful:
            return
        cards = {card.key[0]: (held, card) for held, card in doubtful if card.key is not None}
        verdicts = await resolve(self.desk, self.job.id, list(cards))
        await self.desk.books.rows("review_sent", job=self.job.id, ids=list(verdicts.sent | verdicts.back_again))
        await give_back(self.desk, self.job, [(cards[one][1], None) for one in verdicts.unsent])
        await self._close(verdicts.unknown, "in_doubt", "cut off while it was sent, and nobody saw whether it arrived")
        gone: list[Held] = [cards[one][0] for one in verdicts.sent]
        hand.ack(gone)
        hand.put_back(held for held, _ in doubtful if held not in gone)

    async def _not_found(self, missed: dict[Key, str]) -> None:
        """In the books, and not in the queue. It may be in another consumer's hand and come back: so not at once."""
        self._missed.update(key for key, state in missed.items() if state == "waiting")
        gone = [key[0] for key, times in self._missed.items() if times >= LOOKS and missed.get(key) == "waiting"]
        await self._close(gone, "gone", "not in the queue: another consumer has taken it")
        doubtful = [key[0] for key, state in missed.items() if state == "sending"]
        if doubtful:
            verdicts = await resolve(self.desk, self.job.id, doubtful)
            await self.desk.books.rows("review_sent", job=self.job.id, ids=list(verdicts.sent | verdicts.back_again))
            lost = verdicts.unsent | verdicts.unknown
            await self._close(lost, "in_doubt", "cut off while it was sent, and not in the queue any more")

    async def _close(self, ids: Sequence[str] | set[str], state: str, problem: str) -> None:
        if ids:
            await self.desk.books.rows(
                "review_close_items", job=self.job.id, ids=list(ids), state=state, problem=problem
            )

    async def _beat(self) -> None:
        """Tells that we are at it, and hears if somebody wants it stopped."""
        while not self.halted.is_set():
            with suppress(AuditError):
                row = await self.desk.books.one("review_seen", job=self.job.id)
                if row is None or not row[0]:
                    self.halted.set()
            if await sleep_unless(self.stop, PAUSE):
                self.halted.set()
