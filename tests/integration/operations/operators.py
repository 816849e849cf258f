"""An operator of an installation, and the reconcilers that run in the service."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tarry.amqp.url import Address
from tarry.operations import cancel_reconciler, pause_reconciler
from tarry.operations.context import OperatorContext, OperatorLimits
from tests.support.installation import Installation
from tests.support.proxy import Proxy

T = TypeVar("T")


@dataclass
class Operator:
    """Runs each operation in a new context, as the command line does."""

    installation: Installation
    limits: OperatorLimits = field(default_factory=OperatorLimits)
    amqp_url: str | None = None
    """Of another user than the installation's own."""
    name: str = "operator"

    def do(self, work: Callable[[OperatorContext], Coroutine[Any, Any, T]], *, through: Proxy | None = None) -> T:
        async def run() -> T:
            async with self._context(self.name, through) as context:
                return await work(context)

        return asyncio.run(run())

    @contextlib.contextmanager
    def reconciling(self, every: float = 0.2) -> Iterator[None]:
        """The cancel reconciler and the pause reconciler, on a thread, as the service runs them."""
        loop = asyncio.new_event_loop()
        stop = asyncio.Event()

        async def run() -> None:
            async with self._context("service") as context:
                await asyncio.gather(
                    cancel_reconciler.run(context, stop, every=every), pause_reconciler.run(context, stop, every=every)
                )

        thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(20)
            loop.close()

    def _context(
        self, actor: str, through: Proxy | None = None
    ) -> contextlib.AbstractAsyncContextManager[OperatorContext]:
        installation = self.installation
        address = Address.parse(self.amqp_url or installation.amqp_url, management_url=installation.management_url)
        if through:
            address = replace(address, port=through.port)
        return OperatorContext.open(installation.topology, address, installation.dsn, actor=actor, limits=self.limits)
