"""An operator's hands in a place: actions on a desk, and the service's watchers beside them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tarry.broker.address import Address
from tarry.control import sweep, watch
from tarry.control.desk import Desk
from tarry.control.limits import Limits
from tarry.topology.load import load
from tests.integration.router.serving import Place

T = TypeVar("T")


@dataclass
class Hands:
    """Each action on a desk of its own, as the command line does it."""

    place: Place
    limits: Limits = field(default_factory=Limits)
    amqp_url: str | None = None
    """Of another user than the place's own."""

    def do(self, work: Callable[[Desk], Coroutine[Any, Any, T]]) -> T:
        async def on_a_desk() -> T:
            async with self._desk("operator") as desk:
                return await work(desk)

        return asyncio.run(on_a_desk())

    @contextlib.contextmanager
    def watching(self, every: float = 0.2) -> Iterator[None]:
        """The sweeper and the watcher of holds, on a thread of their own, as the service runs them."""
        loop = asyncio.new_event_loop()
        stop = asyncio.Event()

        async def run() -> None:
            async with self._desk("service") as desk:
                await asyncio.gather(sweep.run(desk, stop, every=every), watch.run(desk, stop, every=every))

        thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(20)
            loop.close()

    def _desk(self, actor: str) -> contextlib.AbstractAsyncContextManager[Desk]:
        place = self.place
        address = Address.parse(self.amqp_url or place.amqp_url, management_url=place.management_url)
        return Desk.open(load(place.folder), address, place.dsn, actor=actor, limits=self.limits)
