"""What the router remembers about destinations."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from tarry.amqp.connection import AmqpConnection
from tarry.amqp.url import Address
from tarry.core.names import Destination, Names
from tarry.router import destinations
from tarry.router.destinations import Destinations


class Link:
    """A connection on which every binding succeeds."""

    def __init__(self) -> None:
        self.asked, self.channel = 0, self

    async def answer(self, _ask: object) -> None:
        self.asked += 1


def test_destinations_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link()

    async def ready(_: Destinations) -> AmqpConnection:
        return cast("AmqpConnection", link)

    async def see(known: Destinations, numbers: range) -> None:
        for number in numbers:
            assert await known.ensure_bound(Destination("queue", f"queue{number}")) is None

    monkeypatch.setattr(destinations, "MOST_BOUND", 100)
    monkeypatch.setattr(Destinations, "_ready", ready)
    known = Destinations(Address.parse("amqp://localhost"), Names(), lambda: 0.0)
    asyncio.run(see(known, range(100)))
    asyncio.run(see(known, range(100)))
    assert link.asked == 100, "each is bound once"
    asyncio.run(see(known, range(1_000)))
    assert len(known._bound) == 100
