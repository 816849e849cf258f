"""The desk: everything that an operator's action needs, in one place. One for each process.

Nothing is connected until an action asks for it, so a desk can be opened while broker or Postgres are away; the action
that needs them then says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tarry.broker.address import Address
from tarry.broker.publisher import Message, Outcome, Publisher
from tarry.control.binder import Binder
from tarry.control.books import Books
from tarry.control.limits import Limits
from tarry.control.words import Words
from tarry.core.names import Names
from tarry.errors import BrokerUnreachableError
from tarry.topology.model import Topology
from tarry.topology.partial import NamesOnly, whole


@dataclass(slots=True)
class Desk:
    """Where the books, the publisher and the bindings are."""

    files: Topology | NamesOnly
    address: Address
    books: Books
    binder: Binder
    actor: str
    """Who acts if nobody else is named: `user@host` at a terminal, the router's name in the service."""
    limits: Limits = field(default_factory=Limits)
    words: Words = field(init=False)
    _publisher: Publisher | None = None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.words = Words(self.books)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, files: Topology | NamesOnly, address: Address, dsn: str, *, actor: str, limits: Limits | None = None
    ) -> AsyncIterator[Desk]:
        """Open for as long as the block lasts."""
        desk = cls(files, address, Books(dsn, actor), Binder(files, address), actor, limits or Limits())
        await desk.books.open()
        try:
            yield desk
        finally:
            await desk.close()

    def use(self, topology: Topology) -> None:
        """Act by these files from now on."""
        self.files = topology
        self.binder.files = topology

    @property
    def topology(self) -> Topology:
        """Raises if the files hold mistakes: what needs only the names asks for `names`."""
        return whole(self.files)

    @property
    def names(self) -> Names:
        return self.files.broker_names

    async def publish(self, messages: Sequence[Message]) -> list[Outcome]:
        """All of them, mandatory and confirmed; UNKNOWN for those that the connection did not survive."""
        async with self._opening:
            if self._publisher is None or not self._publisher.link.is_open:
                self._publisher = await Publisher.open(self.address, "desk: publish")
            publisher = self._publisher
        if publisher.link.blocked:
            raise BrokerUnreachableError(f"{self.address} has an alarm and takes no publishes: see `tarry status`.")
        return await publisher.publish(messages)

    async def bind(self, queue: str, exchange: str, key: str) -> None:
        """Returns once the broker has confirmed it."""
        await self.binder.bind(queue, exchange, key)

    async def unbind(self, queue: str, exchange: str, key: str) -> None:
        """Returns once the broker has confirmed it; one that was not there is no mistake."""
        await self.binder.unbind(queue, exchange, key)

    async def close(self) -> None:
        if self._publisher is not None:
            await self._publisher.link.close()
        await asyncio.gather(self.binder.close(), self.books.close())
