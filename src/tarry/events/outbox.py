"""Publishes events: reads the history and the action log behind the services that write them, and skips no row.

Every service runs it; only the process that has the lock publishes. Rows are read by the id of the transaction that
wrote them, up to the oldest transaction that is not over: ids alone would skip a row whose transaction commits late
(docs/adr/0031-outbox-by-transaction-id.md). The position is stored after the broker has confirmed the events, so after
a crash some are published again, with the same ids, and none is missing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog
from pika.exceptions import ChannelClosedByBroker
from pika.frame import Method
from pika.spec import Queue

from tarry.amqp.declare import NOT_FOUND
from tarry.amqp.publisher import Publisher, PublishOutcome
from tarry.amqp.url import Address
from tarry.core.names import Names
from tarry.errors import BrokerError, BrokerUnreachableError
from tarry.events.cloudevent import Event, source_of
from tarry.events.lag import EventsStatus, read_events_status
from tarry.events.order import LONGEST_HOLD, ReadingClock, Round, StepOrder
from tarry.events.rows import ActionLogRow, StepRow, event_of_action, event_of_step
from tarry.store.database import AdvisoryLock, PostgresPool, PostgresSession, Row, SessionSettings
from tarry.tasks import now_and_then, sleep_unless

log = structlog.get_logger()

BATCH = 500
"""Steps that are read and published at a time; more if one transaction wrote more."""

EVERY = 0.25
"""Seconds between two looks for new steps when all are published."""

REST = 39
"""At full load, the time between two batches of events is this many times that of a batch: retries come first, and
events take a fortieth of the time."""

LOAD_LASTS = 3.0
"""Seconds after a full batch of requests in which the router is taken to be at full load."""

MOST_BEHIND = 45.0
"""Seconds. Events that are further behind do not wait, whatever the load."""

TAKEOVER = 1.0
"""Seconds between two attempts to become the leader."""

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 60.0
"""Seconds before events that a queue has refused are published again."""

BACKLOG = 1_000
"""Messages in a queue of the router from which a step is not given up: its record may be among them."""

LAG_EVERY = 5.0
"""Seconds between two measurements of the lag."""

LARGEST_LAG = 60.0
"""Seconds. A longer lag is a trouble of the service."""

EPOCH = datetime.fromtimestamp(0, UTC)

OnPublished = Callable[[Sequence[Event]], None]
"""Called with events that the broker has confirmed."""

OnStatus = Callable[[EventsStatus | None], None]


@dataclass(slots=True)
class Position:
    """How far events have been published; as stored, but ahead of it while nothing has to be published."""

    transition_xid: int
    action_xid: int
    last_id: int
    since_id: int
    since_at: datetime
    read_until: datetime = EPOCH
    """What was recorded by then has been read, give or take a transaction. Not stored."""
    clock: ReadingClock = field(default_factory=ReadingClock)


@dataclass(slots=True)
class Outbox:
    """Publishes events while it has the lock."""

    store: PostgresPool
    address: Address
    names: Names
    on_published: OnPublished = lambda _: None
    on_status: OnStatus = lambda _: None
    full_batch: int = 500
    """Requests in a batch of a router at full load."""
    batch: int = BATCH
    every: float = EVERY
    _full_load_until: float = float("-inf")
    _pause: float = FIRST_PAUSE
    _source: str = field(init=False)
    _status: EventsStatus | None = None

    def __post_init__(self) -> None:
        self._source = source_of(self.address.vhost, self.names.prefix)

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until `stop` is set. The lag is measured apart, since publishing may fail, or wait for the broker."""
        async with asyncio.TaskGroup() as group:
            group.create_task(now_and_then("events", lambda: self._take_part(stop), stop, TAKEOVER))
            group.create_task(now_and_then("lag of events", self._measure, stop, LAG_EVERY))

    def note_requests(self, number: int) -> None:
        """The router has handled a batch of so many requests. A full one shows that more are waiting."""
        if number >= self.full_batch:
            self._full_load_until = time.monotonic() + LOAD_LASTS

    @property
    def troubles(self) -> list[str]:
        """What delays events, for health checks."""
        status = self._status
        return [] if status is None or status.lag_s <= LARGEST_LAG else [status.describe()]

    async def _take_part(self, stop: asyncio.Event) -> None:
        async with self.store.dedicated(SessionSettings.EVENTS) as session:
            while not stop.is_set():
                async with session.lock(AdvisoryLock.EVENTS) as held:
                    if held:
                        await self._lead(session, stop)
                await sleep_unless(stop, TAKEOVER)

    async def _lead(self, session: PostgresSession, stop: asyncio.Event) -> None:
        """Publishes until the connection to Postgres, which has the lock, or to the broker is lost."""
        publisher = await Publisher.open(self.address, "events: publish")
        try:
            position, order = await self._begin(session, publisher), StepOrder()
            log.info("publishing events", after=position.transition_xid)
            while not stop.is_set():
                started = time.monotonic()
                behind = await self._publish_next(session, publisher, position, order)
                if behind is None:
                    await sleep_unless(stop, self.every)
                elif behind < MOST_BEHIND:
                    await self._yield_to_retries(stop, (time.monotonic() - started) * REST)
        finally:
            await publisher.link.close()

    async def _yield_to_retries(self, stop: asyncio.Event, seconds: float) -> None:
        """Waits for so long, or until the router is not at full load any more."""
        until = time.monotonic() + seconds
        while not stop.is_set() and time.monotonic() < min(until, self._full_load_until):
            await sleep_unless(stop, min(seconds, self.every))

    async def _begin(self, session: PostgresSession, publisher: Publisher) -> Position:
        row = await _one(session, "event_position")
        if row[1] is None:
            await session.change("begin_events")
            row = await _one(session, "event_position")
        bound = await _bound(session)  # after the position: a transaction that ends in between is none of the future
        cluster, known, transition_xid, action_xid, last_id, since_id, since_at, saved_at = row
        position = Position(int(transition_xid), int(action_xid), last_id, since_id, since_at)
        if known != cluster or max(position.transition_xid, position.action_xid) > bound.next_xid:
            return await self._begin_again(session, publisher, position, saved_at)
        return position

    async def _begin_again(
        self, session: PostgresSession, publisher: Publisher, before: Position, saved_at: datetime
    ) -> Position:
        """The database was restored to another cluster, which has transaction ids of its own. Publishes what is not
        known to be published, by its ids, and goes on with what is written from now on. If it is interrupted it begins
        again.
        """
        log.warning(
            "the database was restored to another cluster: events since the backup may be published again",
            last_id=before.last_id,
            saved_at=saved_at.isoformat(),
        )
        cut_id, cut_xid, cut_at = await _one(session, "event_cut")
        actions = await session.rows("event_actions_restored", saved_at=saved_at, cut_at=cut_at)
        await self._publish(publisher, self._events([], [ActionLogRow.of(row) for row in actions]))
        from_id, order = before.since_id, StepOrder()
        known = {"after": str(before.transition_xid), "last_id": before.last_id}
        while rows := await session.rows(
            "event_steps_restored", from_id=from_id, cut=cut_id, limit=self.batch, **known
        ):
            steps, from_id = [StepRow.of(row) for row in rows], rows[-1][1]
            rounds = order.rounds_to_look_up(steps)
            states = await _states(session, "event_steps_before_restored", rounds, reached=from_id, **known)
            await self._publish(publisher, self._events(order.release(steps, states, 0.0), []))
        await self._publish(publisher, self._events(order.release([], {}, LONGEST_HOLD), []))
        await session.change("events_begin_again", xid=cut_xid, id=cut_id, at=cut_at)
        return Position(int(cut_xid), int(cut_xid), cut_id, cut_id, cut_at)

    async def _publish_next(
        self, session: PostgresSession, publisher: Publisher, position: Position, order: StepOrder
    ) -> float | None:
        """Publishes what has been committed since, and stores the position. Returns how many seconds the last of the
        events is behind, and None if there was none.
        """
        now = await _bound(session)
        limits = {"bound": str(now.xid), "limit": self.batch}
        found = await session.rows(
            "event_steps", after=str(position.transition_xid), since_id=position.since_id, **limits
        )
        done = await session.rows("event_actions", after=str(position.action_xid), since_at=position.since_at, **limits)
        steps, actions = [StepRow.of(row) for row in found], [ActionLogRow.of(row) for row in done]
        position.transition_xid = _reached(steps, now.xid, self.batch)
        position.action_xid = _reached(actions, now.xid, self.batch)
        position.last_id = max([position.last_id, *(one.id for one in steps)])
        position.read_until = max(position.read_until, _read_until(steps, now.at, self.batch))
        known = await _known(session, order.rounds_to_look_up(steps), position)
        seconds = position.clock.advance(position.read_until.timestamp(), time.monotonic())
        late = bool(order.held) and await self._records_wait(publisher)
        events = self._events(order.release(steps, known, seconds, records_wait=late), actions)
        await self._publish(publisher, events)
        if events or steps or actions:
            await self._save(session, position, order, len(events))
        self.on_published(events)
        return (now.at - events[-1].time).total_seconds() if events else None

    async def _save(self, session: PostgresSession, position: Position, order: StepOrder, published: int) -> None:
        """A step that is held back has not been published: another leader must begin with it."""
        first = order.first_xid
        reached = position.transition_xid if first is None else min(position.transition_xid, first - 1)
        await session.change(
            "save_event_position",
            transition_xid=str(reached),
            action_xid=str(position.action_xid),
            last_id=position.last_id,
            published=published,
        )

    def _events(self, steps: Sequence[StepRow], actions: Sequence[ActionLogRow]) -> list[Event]:
        of_actions = (event_of_action(one, self._source) for one in actions)
        of_steps = [event_of_step(one, self._source) for one in steps]
        return [*of_steps, *(one for one in of_actions if one is not None)]

    async def _publish(self, publisher: Publisher, events: Sequence[Event]) -> None:
        """Raises unless the stream has all of them. The broker confirms an event that any queue has taken, so the
        stream must exist before and after that: otherwise only an operator's queue has it.
        """
        if not events:
            return
        await self._find_stream(publisher)
        outcomes = set(await publisher.publish([one.message(self.names.events) for one in events]))
        if PublishOutcome.RETURNED in outcomes:
            stream = self.names.events_stream
            raise BrokerError(
                f"Events cannot be published: no queue takes them. Declare {stream}: tarry topology apply"
            )
        if PublishOutcome.NACKED in outcomes:
            # The stream has taken them all the same, and gets them again: so not too often.
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            await asyncio.sleep(self._pause)
            raise BrokerError(
                f"Events were refused: a queue that is bound to {self.names.events} is full and rejects, or has lost "
                "its quorum. Make room in it, unbind it, or let it drop messages."
            )
        if PublishOutcome.UNKNOWN in outcomes:
            closed = publisher.link.closed
            reason = closed.result() if closed.done() else "the connection was lost"
            raise BrokerUnreachableError(f"Events were not confirmed: {reason}.")
        await self._find_stream(publisher)
        self._pause = FIRST_PAUSE

    async def _find_stream(self, publisher: Publisher) -> None:
        link, stream = publisher.link, self.names.events_stream
        try:
            await link.answer(lambda done: link.channel.queue_declare(stream, passive=True, callback=done))
        except ChannelClosedByBroker as error:
            if error.reply_code != NOT_FOUND:
                raise
            raise BrokerError(f"Events cannot be published: there is no {stream}. Run: tarry topology apply") from error

    async def _records_wait(self, publisher: Publisher) -> bool:
        """Whether many requests are to be handled, or many returns and spooled records to be written: the step that
        another one waits for may be among them.
        """
        depths = [await _depth(publisher, queue) for queue in (self.names.audit, self.names.scheduled)]
        return max(depths) > BACKLOG

    async def _measure(self) -> None:
        self._status = await read_events_status(self.store)
        self.on_status(self._status)


@dataclass(frozen=True, slots=True)
class _Bound:
    xid: int
    """Every transaction before this one is over."""
    next_xid: int
    at: datetime


async def _bound(session: PostgresSession) -> _Bound:
    row = await _one(session, "event_bound")
    return _Bound(int(row[0]), int(row[1]), row[2])


async def _depth(publisher: Publisher, queue: str) -> int:
    link, found = publisher.link, 0

    def declare(done: Callable[[object], None]) -> None:
        def declared(answer: Method[Queue.DeclareOk]) -> None:
            nonlocal found
            found = answer.method.message_count
            done(answer)

        link.channel.queue_declare(queue, passive=True, callback=declared)

    await link.answer(declare)
    return found


async def _known(session: PostgresSession, rounds: AbstractSet[Round], position: Position) -> dict[Round, set[str]]:
    """The states that these rounds have had, as far as they have been read."""
    reached = str(position.transition_xid)
    return await _states(session, "event_steps_before", rounds, reached=reached, since_id=position.since_id)


async def _states(
    session: PostgresSession, name: str, rounds: AbstractSet[Round], **limits: object
) -> dict[Round, set[str]]:
    if not rounds:
        return {}
    ids, numbers = [one for one, _ in rounds], [number for _, number in rounds]
    rows = await session.rows(name, ids=ids, rounds=numbers, **limits)
    return {(row[0], row[1]): set(row[2]) for row in rows}


def _read_until(steps: Sequence[StepRow], now: datetime, limit: int) -> datetime:
    """A reader that is behind must not take what it has not read yet for what never comes. A step may have the time of
    a machine whose clock is ahead.
    """
    return min(now, max(step.at for step in steps)) if len(steps) >= limit else now


def _reached(rows: Sequence[StepRow] | Sequence[ActionLogRow], bound: int, limit: int) -> int:
    """The last transaction whose rows have been read."""
    return max(row.xid for row in rows) if len(rows) >= limit else bound - 1


async def _one(session: PostgresSession, name: str) -> Row:
    row = await session.one(name)
    assert row is not None  # noqa: S101 - these queries always have an answer
    return row
