"""A message that cannot be handled must not keep the others of its queue from being handled, again and again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import structlog
from pika.exceptions import AMQPError

from tarry.contract.request import Delivery
from tarry.errors import TarryError
from tarry.router.batches import Settled
from tarry.router.flow import Result

log = structlog.get_logger()

PASSING = (TarryError, AMQPError, OSError)
"""What is the matter with the broker or with Postgres, and not with a message."""

OUR_MISTAKE = "tarry could not handle it: an error inside tarry, which the log of the service has in full"
"""The reason for the review; the log has the rest."""

GiveUp = Callable[[Delivery, str], Awaitable[Result]]
"""To review, with a reason; the result says whether the broker has taken it."""


async def contained(
    batch: Sequence[Delivery],
    handle: Callable[[Sequence[Delivery]], Awaitable[Settled]],
    give_up: GiveUp,
) -> Settled:
    """As `handle` says; a mistake of ours is halved until the one is found that leads to it, and a person gets that."""
    try:
        return await handle(batch)
    except PASSING:
        raise
    except Exception:
        log.exception("batch failed", size=len(batch))
        if len(batch) == 1:
            result = await give_up(batch[0], OUR_MISTAKE)
            return Settled(result.acked, result.requeued)
    middle = len(batch) // 2
    one = await contained(batch[:middle], handle, give_up)
    other = await contained(batch[middle:], handle, give_up)
    return Settled([*one.acked, *other.acked], [*one.requeued, *other.requeued])
