"""Rebuilds missing messages from the store and publishes them again.

A rebuilt message has exactly the bytes that were sent before, and an itinerary for the rest of its delay. `rebuild` and
`next_round` are pure; `Recovery` and `recover_reviews` publish.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pika.exceptions import ChannelClosedByBroker

from tarry.amqp.declare import connect
from tarry.amqp.field_tables import BadTableError, array_entry, cut, entry, pick, walk_array
from tarry.amqp.properties import Properties
from tarry.amqp.publisher import Message, Publisher, PublishOutcome
from tarry.amqp.url import Address
from tarry.audit.verdict import Open
from tarry.contract import headers as h
from tarry.contract.layover import content_of, leg_or_home
from tarry.contract.retry_headers import read_retry_headers
from tarry.core.decide import Rulebook
from tarry.core.ladder import Itinerary, first_queue, itinerary
from tarry.core.names import (
    AUTOMATIC,
    Destination,
    Names,
    id_key,
    is_check_key,
    is_destination_key,
    is_gate_key,
    is_id_key,
)
from tarry.errors import BrokerError, ConflictError
from tarry.store.columns import LEG, columns
from tarry.store.database import AdvisoryLock, PostgresSession
from tarry.store.rows import Leg, LegKey
from tarry.tasks import in_thread
from tarry.topology.model import Topology

_BCC = b"BCC"
_FORM = h.FORM.encode()
_OF_THE_ROUND = frozenset({_BCC, h.ROUND.encode(), h.DUE.encode()})


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """What the store keeps of one message."""

    retry_id: str
    round: int
    routing_key: str
    queue: str
    due_ms: int
    body: bytes
    properties: bytes
    leg: int = 0
    """The latest leg that was sent; 0 if its delay fits the ladder."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The message to publish again, and the tier that it will wait in."""

    stored: StoredMessage
    message: Message
    tier: str
    delay_ms: int
    returns_to: str
    """The routing key of its destination."""
    leg: Leg | None = None
    """The leg to record, if its delay takes or took several: any copy on an earlier one is dropped then."""


class CannotRebuildError(ValueError):
    """The stored properties are damaged, or do not say where the message returns."""


def next_round(
    stored: StoredMessage, names: Names, now_ms: int, retry_count: int | None = None, *, automatic: bool = False
) -> Message:
    """The message as its next round, due now. It bypasses the cancelled gate and goes directly to its relay.

    With `retry_count`, the round has used so many retries; otherwise as many as the round before. A pause of automatic
    retries applies only if it is `automatic`, and not if an operator asked for it; the same holds for its check.
    """
    properties, lasting = _read(stored)
    old = properties.headers or b""
    counts = _counts(old, retry_count)
    kept = cut(old, lambda name: name in _OF_THE_ROUND or name in counts)
    round_ = stored.round + 1
    dropped = [AUTOMATIC.key, *([] if automatic else filter(is_check_key, lasting))]
    others = [key for key in lasting if not is_id_key(key) and key not in dropped]
    addresses = (id_key(stored.retry_id, round_), *([AUTOMATIC.key] if automatic else []), *others)
    own = entry(h.ROUND, round_) + entry(h.DUE, now_ms) + b"".join(counts.values())
    headers = kept + own + array_entry("BCC", addresses)
    token = f"{stored.retry_id}:{round_}"
    return Message(names.relay, stored.routing_key, replace(properties, headers=headers), stored.body, token)


def _counts(headers: bytes, retry_count: int | None) -> dict[bytes, bytes]:
    """The headers that state the count, by name: tarry's own, and that of the contract if the request used it."""
    if retry_count is None:
        return {}
    names = (h.COUNT, h.RETRY_COUNT) if read_retry_headers(pick(headers, {_FORM})).contract else (h.COUNT,)
    return {name.encode(): entry(name, retry_count) for name in names}


def rebuild(stored: StoredMessage, rules: Rulebook, names: Names, now_ms: int) -> Rebuilt:
    """Keeps the due time. The rest of the delay is rounded up, so that the message does not return early."""
    properties, lasting = _read(stored)
    way = itinerary(rules.ladder, max(0, stored.due_ms - now_ms), rules.tiers)
    cancel_key = next(filter(is_id_key, lasting), id_key(stored.retry_id, stored.round))
    keys = [key for key in lasting if not is_id_key(key)]
    kept = cut(properties.headers or b"", lambda name: name == _BCC)
    headers = kept + leg_or_home(way, stored.leg + 1, cancel_key, keys)
    tier = first_queue(way, names, rules.ladder)
    message = Message(
        names.delay,
        stored.routing_key,
        replace(properties, headers=headers),
        stored.body,
        f"{stored.retry_id}:{stored.round}",
    )
    leg = _leg(stored, message, way, tier, now_ms) if way.leg_ms or stored.leg else None
    return Rebuilt(stored, message, tier, way.delay_ms, lasting[-1], leg)


def _leg(stored: StoredMessage, message: Message, way: Itinerary, tier: str, now_ms: int) -> Leg:
    content = content_of(message.properties, message.body)
    return Leg.of(LegKey(stored.retry_id, stored.round, stored.due_ms, content, stored.leg + 1), way, tier, now_ms)


def _read(stored: StoredMessage) -> tuple[Properties, list[str]]:
    """Its properties, and the keys that do not depend on the delay; the last one is the key of its destination."""
    try:
        properties = Properties.decode(stored.properties)
        lasting = _lasting_keys(properties.headers or b"")
    except BadTableError as error:
        raise CannotRebuildError(f"its stored properties are damaged: {error}") from error
    if not lasting or not is_destination_key(lasting[-1]):
        raise CannotRebuildError("its stored headers do not say where it returns")
    return properties, lasting


def _lasting_keys(headers: bytes) -> list[str]:
    found = pick(headers, {_BCC}).get(_BCC)
    keys = [item.text() or "" for item in walk_array(found.value)] if found is not None and found.kind == b"A" else []
    return [key for key in keys if is_id_key(key) or is_check_key(key) or is_gate_key(key) or is_destination_key(key)]


BATCH = 200
NOT_FOUND = 404
ACTOR = "tarry audit recover"

Progress = Callable[[int, int], None]
"""Called with the number done and the total."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of a recovery."""

    sent: int = 0
    moved_on: int = 0
    """Returned, or failed again, between the audit reading and the publish."""
    not_rebuilt: list[tuple[str, str]] = field(default_factory=list)
    """Retry ids, each with the reason."""
    no_queue: list[str] = field(default_factory=list)
    """Destinations that do not exist yet."""


@dataclass(slots=True)
class Recovery:
    """One recovery run. The caller holds `recovery_lock`."""

    session: PostgresSession
    topology: Topology
    address: Address
    actor: str = ACTOR
    progress: Progress = lambda _done, _all: None
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    result: Recovered = field(default_factory=Recovered)

    async def run(self, missing: Sequence[Open]) -> Recovered:
        """Recover all of them, oldest due time first."""
        wanted = [row for row in missing if row.rebuildable]
        queues = sorted({row.queue for row in wanted})
        self.result = Recovered(
            not_rebuilt=[(row.retry_id, "its payload was not kept") for row in missing if not row.rebuildable],
            no_queue=await in_thread(lambda: bind(self.address, self.topology.broker_names, queues), "recover bind"),
        )
        publisher = await Publisher.open(self.address, "audit recover")
        try:
            for start in range(0, len(wanted), BATCH):
                await self._batch(publisher, wanted[start : start + BATCH])
                self.progress(min(start + BATCH, len(wanted)), len(wanted))
        finally:
            await publisher.link.close()
        return self.result

    async def _batch(self, publisher: Publisher, rows: Sequence[Open]) -> None:
        stored = await self._stored(rows)
        self.result = replace(self.result, moved_on=self.result.moved_on + len(rows) - len(stored))
        rebuilt = [one for found in stored if (one := self._rebuilt(found)) is not None]
        if not rebuilt:
            return
        outcomes = await publisher.publish([one.message for one in rebuilt])
        sent = [one for one, outcome in zip(rebuilt, outcomes, strict=True) if outcome is PublishOutcome.CONFIRMED]
        await self._note(sent)
        self.result = replace(self.result, sent=self.result.sent + len(sent))
        if len(sent) < len(rebuilt):
            raise _not_taken(outcomes, self.result.sent)

    async def _stored(self, rows: Sequence[Open]) -> list[StoredMessage]:
        found = await self.session.rows(
            "to_rebuild",
            ids=[row.retry_id for row in rows],
            rounds=[row.round for row in rows],
            expected=[row.expected for row in rows],
        )
        return [StoredMessage(*row) for row in found]

    def _rebuilt(self, stored: StoredMessage) -> Rebuilt | None:
        try:
            return rebuild(stored, self.topology.rules, self.topology.broker_names, self.now_ms())
        except CannotRebuildError as error:
            not_rebuilt = [*self.result.not_rebuilt, (stored.retry_id, str(error))]
            self.result = replace(self.result, not_rebuilt=not_rebuilt)
            return None

    async def _note(self, sent: Sequence[Rebuilt]) -> None:
        async with self.session.transaction():
            await self.session.rows(
                "recovered",
                ids=[one.stored.retry_id for one in sent],
                rounds=[one.stored.round for one in sent],
                tiers=[one.tier for one in sent],
                delay_ms=[one.delay_ms for one in sent],
                actor=self.actor,
            )
            if legs := [one.leg for one in sent if one.leg is not None]:
                await self.session.rows("record_legs", **columns(legs, LEG), actor=self.actor)


async def recover_reviews(
    session: PostgresSession, names: Names, address: Address, progress: Progress, *, actor: str = ACTOR
) -> int:
    """Publish everything that the store has in review to the review queue. The caller holds `recovery_lock`, and has
    checked that the queue is empty.
    """
    publisher = await Publisher.open(address, "audit recover")
    after, sent = "00000000-0000-0000-0000-000000000000", 0
    try:
        while rows := await session.rows("reviews_to_rebuild", after=after, limit=BATCH):
            messages = [_review_message(names, row) for row in rows]
            outcomes = await publisher.publish(messages)
            sent += sum(outcome is PublishOutcome.CONFIRMED for outcome in outcomes)
            if any(outcome is not PublishOutcome.CONFIRMED for outcome in outcomes):
                raise _not_taken(outcomes, sent)
            ids, rounds = [row[0] for row in rows], [row[1] for row in rows]
            after = ids[-1]
            await session.rows("note_recovered", ids=ids, rounds=rounds, actor=actor)
            progress(sent, sent)
    finally:
        await publisher.link.close()
    return sent


def _review_message(names: Names, row: Sequence[Any]) -> Message:
    retry_id, round_, key, body, properties = row
    return Message(names.review, key, Properties.decode(properties), body, f"{retry_id}:{round_}")


def bind(address: Address, names: Names, queues: Sequence[str]) -> list[str]:
    """Bind each destination queue for returns, since a lost broker has no bindings. Returns those that do not exist."""
    missing: list[str] = []
    connection = connect(address, "audit recover")
    try:
        for queue in queues:
            channel = connection.channel()
            try:
                channel.queue_bind(queue, names.deliver, Destination("queue", queue).key)
                channel.close()
            except ChannelClosedByBroker as closed:
                if closed.reply_code == NOT_FOUND:
                    missing.append(queue)
    finally:
        connection.close()
    return missing


@asynccontextmanager
async def recovery_lock(session: PostgresSession) -> AsyncIterator[None]:
    """Only one process at a time recovers retries or writes them off."""
    async with session.lock(AdvisoryLock.RECOVERY) as held:
        if not held:
            raise ConflictError(
                "Another recovery is in progress: wait until it ends, then run `tarry audit verify` again."
            )
        yield


def _not_taken(outcomes: Sequence[PublishOutcome], sent: int) -> BrokerError:
    if PublishOutcome.RETURNED in outcomes:
        return BrokerError(
            f"A tier is not declared on the broker, {sent} were sent: run `tarry topology apply`, then run this again."
        )
    return BrokerError(f"The broker did not accept all of them, {sent} were sent: see its log, then run this again.")
