"""Decides whether unconfirmed messages were sent.

If a crash or a lost connection interrupts a publish, the message is in the review queue again, and may also be on its
way to its destination. The tap records each message that passes. A message is sent again only if the queues on its way
are empty and the tap has not recorded it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tarry.core.names import AUTOMATIC, Destination, Gate
from tarry.errors import MissingOnBrokerError
from tarry.operations.context import OperatorContext
from tarry.operations.paused_destination import read_paused_destinations

SETTLE = timedelta(seconds=6)
"""How long after the publish or the due time, whichever is later, the tap has recorded what it has received."""

PATIENCE = timedelta(seconds=90)
"""How long to wait for evidence; after that, an operator must decide."""

NEXT_LOOK = 1.0

_WENT_ON = frozenset({"returned", "succeeded", "unroutable", "cancelled", "claimed"})
"""States that a message can only reach if it was sent."""


@dataclass(slots=True)
class UnconfirmedVerdicts:
    """What is known now. A message in none of these sets has to wait."""

    sent: set[str] = field(default_factory=set)
    back_again: set[str] = field(default_factory=set)
    """Sent, and in review again: the message in the queue is the one that came back."""
    unsent: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    """It can no longer be determined."""


async def resolve(context: OperatorContext, job_id: str, ids: Sequence[str]) -> UnconfirmedVerdicts:
    first = await _evidence(context, job_id, ids)
    verdicts = _by_the_books(first)
    open_ = [row for row in first if row[0] not in verdicts.sent | verdicts.back_again and row[5]]
    if not open_:
        return verdicts
    if await _way_is_empty(
        context, {Destination("queue", row[7]) for row in open_}, {row[8] for row in open_ if row[8]}
    ):
        await asyncio.sleep(NEXT_LOOK)
        again = await _evidence(context, job_id, [row[0] for row in open_])
        seen = _by_the_books(again)
        verdicts.sent |= seen.sent
        verdicts.back_again |= seen.back_again
        verdicts.unsent = {row[0] for row in again} - seen.sent - seen.back_again
    else:
        verdicts.unknown = {row[0] for row in open_ if row[6]}
    return verdicts


async def _evidence(context: OperatorContext, job_id: str, ids: Sequence[str]) -> list[tuple[Any, ...]]:
    return await context.store.rows("review_evidence", job=job_id, ids=list(ids), settle=SETTLE, patience=PATIENCE)


def _by_the_books(rows: Iterable[tuple[Any, ...]]) -> UnconfirmedVerdicts:
    verdicts = UnconfirmedVerdicts()
    for retry_id, state, live_round, round_, returned_round, *_ in rows:
        if state is None or live_round > round_ or returned_round >= round_ or state in _WENT_ON:
            verdicts.sent.add(retry_id)
        elif state == "in_review":
            verdicts.back_again.add(retry_id)
    return verdicts


async def _way_is_empty(context: OperatorContext, queues: Collection[Destination], exchanges: Collection[str]) -> bool:
    """Whether every queue between the publish and the tap's record of it is empty."""
    names = context.names
    ways = [*queues, *(Destination("exchange", name) for name in exchanges)]
    places = {names.audit, names.relay, names.layover, names.unroutable, names.cancelled}
    places |= {names.relay_queue(way) for way in ways} | {names.held_queue(way) for way in ways}
    places |= {names.held_queue(gate) for gate in (AUTOMATIC, *await _paused_gates(context))}
    for place in sorted(places):
        try:
            if await context.binder.depth(place):
                return False
        except MissingOnBrokerError:
            continue
    return True


async def _paused_gates(context: OperatorContext) -> list[Gate]:
    """The policies and job types whose held queue may have it. Which of them apply to a message is not asked."""
    holders = [paused.holder for paused in await read_paused_destinations(context)]
    return [holder for holder in holders if isinstance(holder, Gate)]
