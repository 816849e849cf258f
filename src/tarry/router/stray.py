"""A message that found no way home, read from tarry's own headers on it."""

from __future__ import annotations

from dataclasses import dataclass

from tarry.contract import headers as h
from tarry.contract.checks import check_origin, check_size
from tarry.contract.fields import pick
from tarry.contract.identity import MOST_ROUNDS, is_canonical
from tarry.contract.reading import HeaderReader, RefusalError
from tarry.contract.request import Acceptance, Delivery, Origin, Request
from tarry.core.decide import Failure
from tarry.core.names import Destination
from tarry.core.policy import MOST_RETRIES

TIMES = "tarry-strays"
"""The header that counts how often a message has strayed."""

_READ = frozenset(
    name.encode()
    for name in (h.ID, h.ROUND, h.DUE, h.QUEUE, h.COUNT, h.EXCHANGE, h.KEY, h.SINCE, h.FORM, h.MOST, h.VIA, TIMES)
)


@dataclass(frozen=True, slots=True)
class Stray:
    """A message that found no way home, read from tarry's own headers on it."""

    request: Request
    due_ms: int
    count: int
    most: int
    times: int
    """How often it has strayed before."""
    through_exchange: bool
    """Whether it was to return by the exchange it had come by."""

    def destination(self, *, due: bool) -> Destination:
        """What is due has been refused where it was going; the queue it failed in is the other way home."""
        origin = self.request.origin
        if self.through_exchange and not due:
            return Destination("exchange", origin.exchange)
        return Destination("queue", origin.queue)


def read_stray(delivery: Delivery, accept: Acceptance) -> Stray:
    """Anybody who may publish can forge one, so it is believed no more than a request is."""
    check_size(delivery, accept)
    headers = HeaderReader(pick(delivery.properties.headers or b"", _READ))
    retry_id, round_, due = headers.text(h.ID), headers.count(h.ROUND, MOST_ROUNDS), headers.count(h.DUE)
    queue, count = headers.text(h.QUEUE), headers.count(h.COUNT, MOST_ROUNDS) or 0
    if retry_id is None or round_ is None or due is None or not queue:
        raise RefusalError("it has none of tarry's headers")
    if not is_canonical(retry_id):
        raise RefusalError(f"the header `{h.ID}` is no retry id: {retry_id[:40]!r}")
    exchange, key = headers.text(h.EXCHANGE) or "", headers.text(h.KEY)
    origin = Origin(queue, exchange, queue if key is None else key)
    check_origin(origin, accept)
    request = Request(
        delivery=delivery,
        form="headers",
        retry_id=retry_id,
        deduplicable=True,
        knows_round=True,
        message_id=None,
        origin=origin,
        failure=Failure(queue, count, round_, headers.count(h.SINCE)),
        body=delivery.body,
        speaks_contract=headers.has(h.FORM),
    )
    most, times = headers.count(h.MOST, MOST_RETRIES) or 0, headers.count(TIMES, MOST_ROUNDS) or 0
    return Stray(request, due, count, most, times, through_exchange=headers.text(h.VIA) == "exchange")
