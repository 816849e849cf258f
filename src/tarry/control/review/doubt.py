"""Was it sent? A message whose sending was cut off, by a crash or a lost connection, is in the queue again, and perhaps
on its way home as well. The tap saw it pass, or it did not. Only when the way is empty, and the tap saw nothing, is it
sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tarry.control.desk import Desk
from tarry.core.names import Destination
from tarry.errors import MissingOnBrokerError

SETTLE = timedelta(seconds=6)
"""So long after the sending or the due moment, whichever is later, the tap has written what it has in its hands."""

PATIENCE = timedelta(seconds=90)
"""So long an answer is waited for; then a person has to say."""

NEXT_LOOK = 1.0

_WENT_ON = frozenset({"returned", "succeeded", "unroutable", "cancelled", "claimed"})
"""States that only a message gets into that was sent."""


@dataclass(slots=True)
class Verdicts:
    """What is known now; whoever is in none of these has to wait."""

    sent: set[str] = field(default_factory=set)
    back_again: set[str] = field(default_factory=set)
    """Sent, and in review once more: the message in the queue is that one."""
    unsent: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    """Nobody can tell any more."""


async def resolve(desk: Desk, job_id: str, ids: Sequence[str]) -> Verdicts:
    first = await _evidence(desk, job_id, ids)
    verdicts = _by_the_books(first)
    open_ = [row for row in first if row[0] not in verdicts.sent | verdicts.back_again and row[5]]
    if not open_:
        return verdicts
    if await _way_is_empty(desk, {Destination("queue", row[7]) for row in open_}, {row[8] for row in open_ if row[8]}):
        await asyncio.sleep(NEXT_LOOK)
        again = await _evidence(desk, job_id, [row[0] for row in open_])
        seen = _by_the_books(again)
        verdicts.sent |= seen.sent
        verdicts.back_again |= seen.back_again
        verdicts.unsent = {row[0] for row in again} - seen.sent - seen.back_again
    else:
        verdicts.unknown = {row[0] for row in open_ if row[6]}
    return verdicts


async def _evidence(desk: Desk, job_id: str, ids: Sequence[str]) -> list[tuple[Any, ...]]:
    return await desk.books.rows("review_evidence", job=job_id, ids=list(ids), settle=SETTLE, patience=PATIENCE)


def _by_the_books(rows: Iterable[tuple[Any, ...]]) -> Verdicts:
    verdicts = Verdicts()
    for retry_id, state, live_round, round_, returned_round, *_ in rows:
        if state is None or live_round > round_ or returned_round >= round_ or state in _WENT_ON:
            verdicts.sent.add(retry_id)
        elif state == "in_review":
            verdicts.back_again.add(retry_id)
    return verdicts


async def _way_is_empty(desk: Desk, queues: Collection[Destination], exchanges: Collection[str]) -> bool:
    """Nothing in any queue between the sending and the tap's record of it."""
    names = desk.names
    ways = [*queues, *(Destination("exchange", name) for name in exchanges)]
    places = {names.audit, names.relay, names.unroutable, names.cancelled}
    places |= {names.relay_queue(way) for way in ways} | {names.held_queue(way) for way in ways}
    for place in sorted(places):
        try:
            if await desk.binder.depth(place):
                return False
        except MissingOnBrokerError:
            continue
    return True
