"""A router with the mistake that matters most: it acknowledges a request before the broker has its successor.

Nothing of this is in tarry; it is here to show that the judge would notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tarry.__main__ import run
from tarry.amqp.publisher import Message, Publisher, PublishOutcome

LATER = 0.5
"""Seconds between the promise and the deed: whatever cuts the connection now and then finds some in between."""


async def publish_and_hope(self: Publisher, messages: Sequence[Message]) -> list[PublishOutcome]:
    """Calls everything confirmed before it is even written."""

    def write() -> None:
        if self.link.is_open:
            self.link.connection.write([self._encode(message) for message in messages])

    asyncio.get_running_loop().call_later(LATER, write)
    return [PublishOutcome.CONFIRMED] * len(messages)


if __name__ == "__main__":
    Publisher.publish = publish_and_hope  # type: ignore[method-assign]
    run()
