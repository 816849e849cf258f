"""Where messages leave: the publisher of the moment, whichever connection that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tarry.broker.publisher import Message, Outcome, Publisher
from tarry.router.flow import FRAME_MAX


@dataclass(slots=True)
class Outlet:
    """Without a publisher every answer is UNKNOWN, and requests stay where they are."""

    publisher: Publisher | None = None

    async def publish(self, messages: Sequence[Message]) -> list[Outcome]:
        if self.publisher is None:
            return [Outcome.UNKNOWN] * len(messages)
        return await self.publisher.publish(messages)

    def frame_max(self) -> int:
        return FRAME_MAX if self.publisher is None else self.publisher.link.frame_max

    @property
    def blocked(self) -> bool:
        """Whether the broker has an alarm."""
        return self.publisher is not None and self.publisher.link.blocked
