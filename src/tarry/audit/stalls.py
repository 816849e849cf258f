"""A stalled queue: messages whose time is up, held by the dead-letter worker because nobody takes them. Pure.

The worker has 32 slots and tries again only every three minutes. A relay of one destination stalls for that one alone;
a tier, or the relay that unattached destinations share, stalls for everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tarry.audit.depths import Depths
from tarry.core.names import Destination, Names

MOST_NAMED = 20

Flow = Mapping[tuple[str, str], int]
"""(tier, destination queue) to a number of messages."""


@dataclass(frozen=True, slots=True)
class Stall:
    """One queue that does not move, and whose fault it can be."""

    queue: str
    messages: int
    destinations: tuple[str, ...]

    def __str__(self) -> str:
        behind = ", ".join(self.destinations) or "an unknown destination"
        return f"{self.queue} is stalled with {self.messages} messages: {behind} does not take them"


def stalls(before: Depths, now: Depths, between: Flow, recent: Flow, overdue: Flow) -> list[Stall]:
    """Held by the worker at both looks, and nothing came through `between` them. `recent` goes back further: the tap
    sees a message pass whose destination then refuses it.
    """
    names = now.names
    both = {name: min(before[name].moving, depth.moving) for name, depth in {**now.tiers, **now.relays}.items()}
    return [
        Stall(name, count, tuple(_behind(name, now, recent, overdue)))
        for name, count in sorted(both.items())
        if count and not any(_goes_through(name, key, names, now) for key in between)
    ]


def _goes_through(queue: str, key: tuple[str, str], names: Names, depths: Depths) -> bool:
    """Whether what went by this tier to this destination passes the queue. The ladder is anybody's way."""
    tier, destination = key
    if queue == names.relay or queue.startswith(f"{names.relay}."):
        own = names.relay_queue(Destination("queue", destination))
        return queue == (own if own in depths.queues else names.relay)
    return queue == tier or queue.startswith(f"{names.prefix}ladder.")


def _behind(queue: str, depths: Depths, recent: Flow, overdue: Flow) -> list[str]:
    """A relay's name says it; else those for whom something is overdue, or that something went to of late."""
    names = depths.names
    if queue.startswith(f"{names.relay}."):
        return [queue.removeprefix(f"{names.relay}.")]
    owed = [key for key in overdue if _goes_through(queue, key, names, depths)]
    gone = [key for key in recent if _goes_through(queue, key, names, depths)]
    return sorted({destination for _, destination in owed or gone})[:MOST_NAMED]
