"""The result of a batch, and how a message that cannot be handled is isolated from the rest of its batch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import structlog
from pika.exceptions import AMQPError

from tarry.amqp.delivery import Delivery
from tarry.errors import TarryError


class Settled(Protocol):
    """Which deliveries to acknowledge and which to requeue."""

    @property
    def acked(self) -> Sequence[int]: ...
    @property
    def requeued(self) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Which deliveries of a batch to acknowledge and which to requeue."""

    acked: Sequence[int] = ()
    requeued: Sequence[int] = ()
    """Tried again after a wait; other deliveries are processed in the meantime."""

    @classmethod
    def of(cls, parts: Sequence[Settled]) -> BatchResult:
        """The result of a batch that was handled in parts."""
        return cls([tag for part in parts for tag in part.acked], [tag for part in parts for tag in part.requeued])


def requeued(batch: Sequence[Delivery]) -> BatchResult:
    return BatchResult(requeued=[delivery.tag for delivery in batch])


log = structlog.get_logger()

OUTAGES = (TarryError, AMQPError, OSError)
"""Errors caused by the broker or by Postgres, not by a message."""

OUR_MISTAKE = "tarry could not handle it: an error inside tarry, which the log of the service has in full"
"""The reason shown in review; the log has the details."""

GiveUp = Callable[[Delivery, str], Awaitable[Settled]]
"""Sends a delivery to review, with a reason; the result says whether the broker accepted it."""

T = TypeVar("T")
R = TypeVar("R")


async def handle_batch(
    batch: Sequence[Delivery], handle: Callable[[Sequence[Delivery]], Awaitable[Settled]], give_up: GiveUp
) -> list[Settled]:
    """Handles a batch so that every delivery is settled, and none affects the others; returns the result of each part.

    If the broker or Postgres fails, the deliveries are requeued. A delivery that causes an error inside tarry goes to
    review, alone.
    """

    async def attempt(part: Sequence[Delivery]) -> Settled:
        try:
            return await handle(part)
        except OUTAGES as error:
            log.warning("batch failed, will try again", size=len(part), error=str(error))
            return requeued(part)
        except Exception:
            log.exception("batch failed", size=len(part))
            raise

    async def review(delivery: Delivery, _: Exception) -> Settled:
        try:
            return await give_up(delivery, OUR_MISTAKE)
        except Exception:
            log.exception("a message can neither be handled nor be sent to review")
            return requeued([delivery])

    return await isolate_poison(batch, attempt, review, Exception, again=_redelivered)


async def isolate_poison(
    items: Sequence[T],
    handle: Callable[[Sequence[T]], Awaitable[R]],
    handle_alone: Callable[[T, Exception], Awaitable[R]],
    poison: type[Exception],
    again: Callable[[T], T] = lambda item: item,
) -> list[R]:
    """Calls `handle` for a batch; returns the result of each part, in order.

    After an error of the type `poison` the batch is halved until the item that causes it is alone. That item and the
    error go to `handle_alone`. `again` is applied to items that are handled another time.
    """
    try:
        return [await handle(items)]
    except poison as error:
        if len(items) == 1:
            return [await handle_alone(items[0], error)]
    items, middle = [again(item) for item in items], len(items) // 2
    first = await isolate_poison(items[:middle], handle, handle_alone, poison, again)
    return first + await isolate_poison(items[middle:], handle, handle_alone, poison, again)


def _redelivered(delivery: Delivery) -> Delivery:
    """The failed attempt may have claimed or written something: only a redelivery may do that again."""
    return delivery._replace(redelivered=True)
