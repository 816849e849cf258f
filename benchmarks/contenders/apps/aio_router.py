"""The loop of benchmarks/router/on_aio_pika.py, for ever, telling what it has scheduled.

python -m benchmarks.contenders.apps.aio_router, with the settings of the service and BENCH_MARKS set
"""

from __future__ import annotations

import sys
import uuid

import uvloop
from aio_pika.abc import AbstractIncomingMessage

from benchmarks.contenders.marks import Marker
from benchmarks.router.on_aio_pika import AioRouter
from tarry.audit.store import Store
from tarry.settings import load_settings


class Marked(AioRouter):
    """Counts."""

    def __init__(self, store: Store) -> None:
        super().__init__(sys.maxsize, store)
        self.marker = Marker()

    async def handle(self, batch: list[AbstractIncomingMessage]) -> None:
        await super().handle(batch)
        self.marker.scheduled(len(batch))


async def main() -> None:
    store = Store(load_settings().dsn, f"aio-{uuid.uuid4()}")
    await store.open()
    await Marked(store).run()


if __name__ == "__main__":
    uvloop.run(main())
