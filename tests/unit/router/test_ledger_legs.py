"""The ledger and the legs of long delays: Postgres decides what is a copy, else memory, else it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from tarry.amqp.delivery import Delivery
from tarry.amqp.publisher import Message, PublishOutcome
from tarry.core.names import Names
from tarry.errors import AuditError, AuditUnavailableError
from tarry.router.ledger import LEG, ResilientLedger, spooled_leg, spooled_leg_message
from tarry.service import tap
from tarry.store.claims import Store
from tarry.store.rows import Leg, LegKey, Record, Return
from tests.unit.contract.test_request_later_rounds import OURS
from tests.unit.contract.wire import array, headers, named, text

CONTENT = "0123456789abcdef0123456789abcdef"
FIRST = Leg("0a0a0a0a-0b0b-5c0c-8d0d-0e0e0e0e0e0e", 1, 5_000, CONTENT, 1, "tier", 10, 4_990, 3_000)
SECOND = FIRST._replace(leg=2, at_ms=3_010, delay_ms=1_990, wait_ms=None)


@dataclass
class Postgres:
    """Knows these legs to be sent on, unless it is away."""

    sent_on: set[LegKey] = field(default_factory=set)
    problem: AuditError | None = None
    recorded: list[Leg] = field(default_factory=list)
    has_unconfirmed: bool = False

    async def legs_sent_on(self, legs: Sequence[LegKey]) -> set[LegKey]:
        if self.problem is not None:
            raise self.problem
        return self.sent_on.intersection(legs)

    async def record_legs(self, legs: Sequence[Leg]) -> None:
        if self.problem is not None:
            raise self.problem
        self.recorded += legs


@dataclass
class Scene:
    postgres: Postgres = field(default_factory=Postgres)
    spooled: list[Message] = field(default_factory=list)

    def run(self, *legs: Leg, ask: LegKey = FIRST.key) -> set[LegKey]:
        """Records the legs, then asks."""

        async def work() -> set[LegKey]:
            ledger = ResilientLedger(cast("Store", self.postgres), self._publish, Names(), lambda: 0)
            ledger.store_is_ready()
            if legs:
                await ledger.record_legs(legs)
            found = await ledger.legs_sent_on([ask])
            await ledger.close()
            return found

        return asyncio.run(work())

    async def _publish(self, messages: Sequence[Message]) -> list[PublishOutcome]:
        self.spooled += messages
        return [PublishOutcome.CONFIRMED] * len(messages)


def test_ledger_takes_the_word_of_postgres() -> None:
    assert Scene(Postgres({FIRST.key})).run() == {FIRST.key}
    assert Scene().run() == set()


def test_ledger_without_postgres_knows_what_it_sent_itself_and_spools_it() -> None:
    scene = Scene(Postgres(problem=AuditUnavailableError("away")))
    assert scene.run(SECOND) == {FIRST.key}
    assert [spooled_leg(delivered(one)) for one in scene.spooled] == [SECOND]
    assert scene.run(SECOND, ask=FIRST.key._replace(due_ms=6_000)) == set(), "of another wait nothing is known"
    assert scene.run(SECOND, ask=FIRST.key._replace(content=CONTENT[::-1])) == set(), "it is another message"


@pytest.mark.parametrize("problem", [AuditUnavailableError("away"), AuditError("refused")])
def test_ledger_in_doubt_has_the_leg_sent(problem: AuditError) -> None:
    assert Scene(Postgres(problem=problem)).run() == set()


def delivered(message: Message) -> Delivery:
    return Delivery(message.body, message.properties, "retry.spool")


@dataclass
class TapStore:
    """Takes what the tap writes."""

    legs: list[Leg] = field(default_factory=list)
    returns: list[Return] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

    async def record_legs(self, legs: Sequence[Leg]) -> None:
        self.legs += legs

    async def returned(self, found: Sequence[Return]) -> list[object]:
        self.returns += found
        return []

    async def record(self, records: Sequence[Record]) -> None:
        self.records += records

    started = succeeded = skipped = record


def test_tap_writes_a_spooled_leg_and_takes_no_leg_for_a_return() -> None:
    store = TapStore()
    on_leg = headers(OURS) + named("tarry-layover", array(text("1"), text("~to:orders")))
    spooled = delivered(spooled_leg_message(FIRST, Names()))
    broken = spooled._replace(body=b'{"leg": 1}')
    copies = [
        Delivery(b"", spooled.properties.__class__(headers=table), "retry.deliver") for table in (on_leg, headers(OURS))
    ]
    unwritten = asyncio.run(tap.Tap(cast("Store", store), Names()).handle([spooled, broken, *copies], lambda _: 0))
    assert (store.legs, store.records, spooled.properties.type) == ([FIRST], [], LEG)
    assert len(store.returns) == 1
    assert [reason for _, reason in unwritten] == ["not a spooled record: its body is not what a router writes"]


def test_tap_of_the_cancelled_queue_sees_a_diverted_leg() -> None:
    on_leg = headers(OURS) + named("tarry-layover", array(text("1"), text("~to:orders")))
    delivery = Delivery(b"", delivered(spooled_leg_message(FIRST, Names())).properties, "retry.gate.cancelled")
    delivery.properties.headers = on_leg
    assert tap.read_sighting(delivery, lambda _: 0, Names()) is None
    assert tap.read_sighting(delivery, lambda _: 0, Names(), returns=False) is not None
