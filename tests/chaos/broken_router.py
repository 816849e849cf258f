"""A router with the mistake that matters most: it acknowledges a request before the broker has its successor.

Nothing of this is in tarry; it is here to show that the judge would notice.
"""

from __future__ import annotations

from collections.abc import Sequence

from tarry.__main__ import run
from tarry.broker.publisher import Message, Outcome, Publisher


async def publish_and_hope(self: Publisher, messages: Sequence[Message]) -> list[Outcome]:
    """As the real one, but it calls everything confirmed as soon as it is written."""
    if messages and self.link.is_open:
        self.link.connection.write([self._encode(message) for message in messages])
    return [Outcome.CONFIRMED] * len(messages)


if __name__ == "__main__":
    Publisher.publish = publish_and_hope  # type: ignore[method-assign]
    run()
