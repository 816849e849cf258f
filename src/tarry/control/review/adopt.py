"""What the queue has and the books do not: into the books with it, so that it can be listed, sent on or thrown away.

And out of the queue with what a job was cut off from removing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from tarry.audit.columns import RECORD, column, columns
from tarry.audit.records import Record
from tarry.audit.store import LARGEST_PAYLOAD
from tarry.broker.publisher import Message, Outcome
from tarry.contract.message import Delivery
from tarry.contract.reviewing import for_review
from tarry.control.desk import Desk
from tarry.control.review.card import Card, Key, key_of, read_card
from tarry.control.review.check import Checked
from tarry.control.review.hand import Hand, Held
from tarry.control.review.jobs import acceptance
from tarry.control.review.unlisted import read_unlisted
from tarry.control.review.work import FRAME_MAX, MOST, MOST_BYTES, the_hand
from tarry.core.decide import Failure
from tarry.core.fingerprint import fingerprint
from tarry.core.states import State
from tarry.errors import BrokerError

BATCH = 200


@dataclass(frozen=True, slots=True)
class Mended:
    """What was done about the differences."""

    adopted: int = 0
    closed: int = 0
    removed: int = 0


async def adopt(desk: Desk, found: Checked, *, actor: str) -> int:
    """A message that has its id is only written down. One without gets an id: it is put into the queue anew with one,
    and a crash in that moment leaves it there twice, with the id and without.
    """
    lacking = {one.key for one in found.strangers if one.kind == "not in the books" and one.key is not None}
    nameless = any(one.kind == "no id" for one in found.strangers)
    adopted = 0
    while True:
        async with Hand.open(
            desk.address,
            desk.names.review_queue,
            partial(_is_wanted, frozenset(lacking), nameless),
            most=MOST,
            most_bytes=MOST_BYTES,
        ) as hand:
            kept, whole = await _look(desk, hand)
            for start in range(0, len(kept), BATCH):
                adopted += await _batch(desk, hand, kept[start : start + BATCH], actor)
            await hand.settled()
        lacking -= {key for held in kept if (key := key_of(held.delivery)) is not None}
        if whole:
            return adopted


def _is_wanted(lacking: frozenset[Key], nameless: bool, delivery: Delivery) -> bool:  # noqa: FBT001 - for partial
    key = key_of(delivery)
    return nameless if key is None else key in lacking


async def _look(desk: Desk, hand: Hand) -> tuple[list[Held], bool]:
    async with the_hand(desk, asyncio.Event()):
        look = await hand.look()
        await hand.settled()
    return look.kept, look.whole


async def _batch(desk: Desk, hand: Hand, kept: Sequence[Held], actor: str) -> int:
    """The books first: a row without a message is found out, a message without a row is what we came to end."""
    cards = [(held, read_card(held.delivery)) for held in kept]
    known = [(held, card) for held, card in cards if card.key is not None]
    named = [(held, *_named(desk, held.delivery)) for held, card in cards if card.key is None]
    records = [_record(desk, held.delivery, card) for held, card in known]
    records += [_record(desk, _delivery(sent), card) for _, sent, card in named]
    await _write(desk, records, actor)
    if named:
        hand.check()
        outcomes = await desk.publish([sent for _, sent, _ in named])
        hand.ack(held for (held, _, _), outcome in zip(named, outcomes, strict=True) if outcome is Outcome.CONFIRMED)
        if set(outcomes) != {Outcome.CONFIRMED}:
            raise BrokerError("The broker did not take all of them back into review: see its log, then run this again.")
    hand.put_back(held for held, _ in known)
    return len(records)


def _named(desk: Desk, delivery: Delivery) -> tuple[Message, Card]:
    """The same message, with an id and the reason."""
    item = read_unlisted(delivery, acceptance(desk))
    key = delivery.routing_key if isinstance(delivery.routing_key, str) else ""
    properties = for_review(item, item.reason, 0, FRAME_MAX)
    message = Message(desk.names.review, key, properties, delivery.body, f"{item.retry_id}:0")
    return message, replace(read_card(_delivery(message)), message_id=item.message_id)


def _delivery(message: Message) -> Delivery:
    return Delivery(message.body, message.properties, message.exchange, message.routing_key)


def _record(desk: Desk, delivery: Delivery, card: Card) -> Record:
    retry_id, round_ = card.key or ("", 0)
    policy = desk.topology.rules.policy_for(Failure(card.queue)) if card.queue else None
    keep = (policy is None or policy.keep_payload) and len(delivery.body) <= LARGEST_PAYLOAD
    return Record(
        retry_id=retry_id,
        round=round_,
        state=State.IN_REVIEW,
        queue=_storable(card.queue) or "",
        reason=_storable(card.reason),
        exchange=_storable(card.exchange) or "",
        routing_key=_storable(card.routing_key) or "",
        message_id=card.message_id,
        retry_count=card.retry_count,
        policy=policy.name if policy else None,
        error_type=_storable(card.error_type),
        error_reason=_storable(card.error_reason),
        since_ms=card.since_ms,
        body=delivery.body if keep else None,
        properties=b"".join(delivery.properties.encode()) if keep else None,
    )


async def _write(desk: Desk, records: Sequence[Record], actor: str) -> None:
    if records:
        rows = columns(records, RECORD)
        rows["bodies"] = column("bodies", (one.body for one in records))
        rows["fingerprints"] = column(
            "fingerprints", (fingerprint(one.error_type, one.error_reason) for one in records)
        )
        await desk.books.rows("record", **rows, actor=actor)


def _storable(text: str | None) -> str | None:
    """Postgres text takes no NUL."""
    return text.replace("\x00", "\\x00") if text else text


async def remove_leftovers(desk: Desk, found: Checked) -> int:
    """Only those that a job has sent on or thrown away in this very round."""
    left = {one.key for one in found.strangers if one.kind == "left over" and one.key is not None}
    if not left:
        return 0
    async with Hand.open(
        desk.address,
        desk.names.review_queue,
        lambda one: key_of(one) in left,
        most=10 * MOST,
        most_bytes=4 * MOST_BYTES,
    ) as hand:
        kept, _ = await _look(desk, hand)
        hand.ack(kept)
        await hand.settled()
    return len(kept)
