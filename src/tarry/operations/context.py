"""The operator context: the connections and limits that operator actions use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from tarry.amqp.publisher import Message, Publisher, PublishOutcome
from tarry.amqp.url import Address
from tarry.core.names import Names
from tarry.errors import AuditError, BrokerUnreachableError
from tarry.operations.bindings import Bindings
from tarry.operations.credit_check import CreditCheck
from tarry.store.database import PostgresPool
from tarry.store.rows import StuckLimits
from tarry.topology.model import Topology
from tarry.topology.partial import NamesOnly, whole

Outcome = Literal["diverted", "returned"]

ASK_EVERY = 0.1
"""Seconds between two queries for outcomes."""


@dataclass(frozen=True, slots=True)
class OperatorLimits:
    """Time limits and maximums of operator actions; one set for a whole installation."""

    margin: timedelta = timedelta(seconds=2)
    """A binding confirmed this long before the due time was in time, despite clock differences and cluster delays."""
    outcome_timeout: timedelta = timedelta(seconds=10)
    """How long after the due time to wait for the outcome from the tap; after that the answer is `pending`."""
    linger: timedelta = timedelta(minutes=2)
    """How long a cancel's binding stays after the message was diverted: a duplicate from a crash may follow it."""
    most_cancels: int = 500
    """Maximum of cancels and retry-nows in progress on a broker before 3.11: more slow down its direct exchanges."""
    stuck_after: timedelta | None = timedelta(minutes=30)
    """How long an attempt may run without an outcome before it is stuck, unless its policy says otherwise."""
    private_webhooks: bool = False
    """Whether all webhooks may go to private addresses."""
    longest_watch: timedelta = timedelta(minutes=15)
    """Upper limit of the usual time to fail for which a canary is watched; same as the default of `presume_after`."""


@dataclass(slots=True)
class OutcomeWatcher:
    """Waits for the outcome of diversions, as recorded by the taps: the message was diverted, or it has returned.

    Many callers may wait at once. One loop reads the outcomes for all of them; it runs as long as there are callers.
    """

    store: PostgresPool
    _waiting: dict[str, asyncio.Future[Outcome]] = field(default_factory=dict)
    _asking: asyncio.Task[None] | None = None

    async def of(self, diversion: str, patience: float) -> Outcome | None:
        """The outcome; None if there is none within `patience` seconds."""
        waiting: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[diversion] = waiting
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        try:
            async with asyncio.timeout(patience):
                return await waiting
        except TimeoutError:
            return None
        finally:
            self._waiting.pop(diversion, None)

    async def _ask(self) -> None:
        while self._waiting:
            for diversion, outcome in await self._look():
                waiting = self._waiting.get(diversion)
                if outcome is not None and waiting is not None and not waiting.done():
                    waiting.set_result(outcome)
            await asyncio.sleep(ASK_EVERY)

    async def _look(self) -> list[tuple[str, Outcome | None]]:
        """While Postgres is unavailable there are no outcomes; each caller has its own deadline."""
        try:
            rows = await self.store.rows("diversion_outcomes", ids=list(self._waiting))
        except AuditError:
            return []
        return [(row[0], row[1]) for row in rows]


@dataclass(slots=True)
class OperatorContext:
    """The store, the publisher and the bindings for operator actions."""

    files: Topology | NamesOnly
    address: Address
    store: PostgresPool
    binder: Bindings
    actor: str
    """The default actor: `user@host` at a terminal, the router's name in the service."""
    limits: OperatorLimits = field(default_factory=OperatorLimits)
    check: CreditCheck | None = None
    """Asked before a manual retry."""
    outcomes: OutcomeWatcher = field(init=False)
    _publisher: Publisher | None = None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.outcomes = OutcomeWatcher(self.store)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        files: Topology | NamesOnly,
        address: Address,
        dsn: str,
        *,
        actor: str,
        limits: OperatorLimits | None = None,
        check: CreditCheck | None = None,
    ) -> AsyncIterator[OperatorContext]:
        """Open until the block ends."""
        store, binder = PostgresPool(dsn, actor), Bindings(files, address)
        context = cls(files, address, store, binder, actor, limits or OperatorLimits(), check)
        await context.store.open()
        try:
            yield context
        finally:
            await context.close()

    def use(self, topology: Topology) -> None:
        """Uses this topology from now on."""
        self.files = topology
        self.binder.files = topology

    @property
    def topology(self) -> Topology:
        """Raises if the files contain errors: use `names` where only the names are needed."""
        return whole(self.files)

    @property
    def names(self) -> Names:
        return self.files.broker_names

    def stuck_limits(self) -> StuckLimits:
        """When attempts are stuck. If the topology files have errors, the policies' own limits are not known."""
        policies = self.files.rules.policies if isinstance(self.files, Topology) else ()
        own = {one.name: timedelta(milliseconds=one.stuck_after) for one in policies if one.stuck_after is not None}
        return StuckLimits(self.limits.stuck_after, own)

    async def publish(self, messages: Sequence[Message]) -> list[PublishOutcome]:
        """Publishes all messages, mandatory and confirmed; UNKNOWN for any that a lost connection left unconfirmed."""
        async with self._opening:
            if self._publisher is None or not self._publisher.link.is_open:
                self._publisher = await Publisher.open(self.address, "operator: publish")
            publisher = self._publisher
        if publisher.link.blocked:
            raise BrokerUnreachableError(f"{self.address} has an alarm and accepts no publishes: see `tarry status`.")
        return await publisher.publish(messages)

    async def bind(self, queue: str, exchange: str, key: str) -> None:
        """Returns once the broker has confirmed it."""
        await self.binder.bind(queue, exchange, key)

    async def unbind(self, queue: str, exchange: str, key: str) -> None:
        """Returns once the broker has confirmed it; a binding that does not exist is not an error."""
        await self.binder.unbind(queue, exchange, key)

    async def close(self) -> None:
        if self._publisher is not None:
            await self._publisher.link.close()
        await asyncio.gather(self.binder.close(), self.store.close())
