"""Messages and records as the router makes them, without the router: for measuring what comes after it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from benchmarks.router.load import HEADERS
from benchmarks.router.stage import ORIGIN, Space
from tarry.amqp.delivery import Delivery
from tarry.amqp.properties import PERSISTENT, Properties
from tarry.amqp.publisher import Message, Publisher, PublishOutcome
from tarry.contract.message import Acceptance, Request
from tarry.contract.request import parse
from tarry.core.decide import decide
from tarry.router.pipeline import FRAME_MAX
from tarry.router.plan import RoutePlan, claim_of, message_of, record_of
from tarry.store.claims import Store
from tarry.store.rows import Record

BODY = bytes(range(256)) * 2
BATCH = 1_000


class Planner:
    """The router's own steps, but for taking requests and claiming them."""

    def __init__(self, space: Space) -> None:
        self.topology = space.topology
        self.names = space.topology.broker_names
        self._accept = Acceptance(self.names, self.topology.destinations, self.topology.failures)

    def plan(self) -> RoutePlan:
        message_id = uuid.uuid4().hex.encode()
        properties = Properties(headers=HEADERS, delivery_mode=PERSISTENT, message_id=message_id)
        request = parse(Delivery(BODY, properties, self.names.intake, ORIGIN), self._accept, lambda: str(uuid.uuid4()))
        assert isinstance(request, Request)
        now = time.time_ns() // 1_000_000
        return RoutePlan(request, 1, decide(request.failure, self.topology.rules, now, 0.5), now)

    def message(self, plan: RoutePlan) -> Message:
        return message_of(plan, self.names, FRAME_MAX)[1]

    def record(self, plan: RoutePlan, message: Message) -> Record:
        return record_of(plan, message, self.names, self.topology.rules.ladder)


async def write_store(space: Space, planner: Planner, plans: Sequence[RoutePlan]) -> None:
    """So that the tap finds each of them."""
    store = Store(space.dsn, "benchmark")
    await store.open()
    for start in range(0, len(plans), BATCH):
        batch = plans[start : start + BATCH]
        await store.claim([claim_of(plan.item) for plan in batch if isinstance(plan.item, Request)])
        await store.record([planner.record(plan, planner.message(plan)) for plan in batch])
    await store.close()


async def publish_all(publisher: Publisher, messages: Sequence[Message]) -> None:
    outcomes = await publisher.publish(messages)
    if set(outcomes) - {PublishOutcome.CONFIRMED}:
        raise RuntimeError(f"the broker did not take every message: {set(outcomes)}")
