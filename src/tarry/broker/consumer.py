"""Consuming in batches: a batch closes when it is full or a few milliseconds after its first message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tarry.broker.address import Address
from tarry.broker.link import Link
from tarry.contract.request import Delivery

LINGER = 0.004
"""Seconds that a batch waits for company."""


class Consumer:
    """Deliveries of one queue."""

    def __init__(self, link: Link, *, batch: int) -> None:
        self.link = link
        self._most = batch
        self._waiting: list[Delivery] = []
        self._some = asyncio.Event()
        self._full = asyncio.Event()

    @classmethod
    async def open(
        cls, address: Address, queue: str, purpose: str, *, batch: int = 500, prefetch: int = 2_000
    ) -> Consumer:
        link = await Link.open(address, purpose)
        consumer = cls(link, batch=batch)
        link.channel.basic_qos(prefetch_count=prefetch)
        link.channel.basic_consume(queue, consumer._on_delivery)
        link.closes_with_channel()
        link.closed.add_done_callback(lambda _: consumer._some.set())
        return consumer

    async def batches(self) -> AsyncIterator[list[Delivery]]:
        """Until the link is closed."""
        while True:
            await self._some.wait()
            if self.link.closed.done():
                return
            if len(self._waiting) < self._most:
                await self._linger()
            taken, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            if not self._waiting:
                self._some.clear()
            if len(self._waiting) < self._most:
                self._full.clear()
            yield taken

    async def _linger(self) -> None:
        try:
            await asyncio.wait_for(self._full.wait(), LINGER)
        except TimeoutError:
            return

    def ack(self, tag: int) -> None:
        if self.link.is_open:
            self.link.channel.basic_ack(tag)

    def requeue(self, tag: int) -> None:
        if self.link.is_open:
            self.link.channel.basic_nack(tag, requeue=True)

    def _on_delivery(self, _channel: object, method: Any, properties: Any, body: bytes) -> None:
        delivery = Delivery(
            body, properties, method.exchange, method.routing_key, bool(method.redelivered), method.delivery_tag
        )
        self._waiting.append(delivery)
        self._some.set()
        if len(self._waiting) >= self._most:
            self._full.set()
