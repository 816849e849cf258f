"""What becomes of a batch of requests: the flow's result is told to metrics and log, and its failures are contained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from pika.exceptions import AMQPError

from tarry.contract.request import Delivery
from tarry.errors import TarryError
from tarry.router.batches import Settled
from tarry.router.contain import OUR_MISTAKE
from tarry.router.flow import Flow, Result

log = structlog.get_logger()


@dataclass(slots=True)
class Requests:
    """The handler of the request queue."""

    flow: Flow
    tell: Callable[[Result], None]

    async def __call__(self, batch: Sequence[Delivery], given_up: Callable[[], bool] = lambda: False) -> Settled:
        try:
            result = await self.flow.handle(batch, given_up)
        except (TarryError, AMQPError, OSError) as error:
            log.warning("batch failed, will try again", size=len(batch), error=str(error))
            return Settled(requeued=[delivery.tag for delivery in batch])
        except Exception:  # a mistake of ours, which must not take anybody's messages with it
            log.exception("batch failed", size=len(batch))
            return await self._contain(batch, given_up)
        return self._told(result)

    async def _contain(self, batch: Sequence[Delivery], given_up: Callable[[], bool]) -> Settled:
        """Halve until the one is found that cannot be handled, and give that one to a person."""
        # Their claims may already be ours: only a redelivery may take them up again.
        again = [delivery._replace(redelivered=True) for delivery in batch]
        if len(again) > 1:
            middle = len(again) // 2
            one, other = await self(again[:middle], given_up), await self(again[middle:], given_up)
            return Settled([*one.acked, *other.acked], [*one.requeued, *other.requeued])
        try:
            return self._told(await self.flow.give_up(again[0], OUR_MISTAKE))
        except Exception:
            log.exception("a request can neither be moved nor be given to review", size=1)
            return Settled(requeued=[again[0].tag])

    def _told(self, result: Result) -> Settled:
        self.tell(result)
        return Settled(result.acked, result.requeued)
