"""What an earlier topology declared and the present one does not: retired tiers, and levels of a taller ladder.

Only names that tarry itself would make are looked at, so a second installation whose prefix begins with ours, a relay,
a held queue or anybody's own queue is never taken for one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tarry.core.names import Names
from tarry.topology.live import Live
from tarry.topology.objects import Blueprint, Exchange, Queue, Role

_DURATION = r"\d+(?:ms|s|m|h)"


def tier_role(names: Names, queue: str) -> Role | None:
    """`tier`, `ladder` or None, from the name alone."""
    prefix = re.escape(names.prefix)
    if re.fullmatch(rf"{prefix}delay\.{_DURATION}", queue):
        return "tier"
    if re.fullmatch(rf"{prefix}ladder\.\d+\.{_DURATION}", queue):
        return "ladder"
    return None


def left_over_queues(names: Names, wanted: Blueprint, live: Live) -> Iterator[Queue]:
    known = {queue.name for queue in wanted.queues}
    for name, queue in sorted(live.queues.items()):
        role = tier_role(names, name)
        if role is not None and name not in known:
            yield Queue(name, queue.arguments, role, queue.durable)


def left_over_exchanges(names: Names, wanted: Blueprint, live: Live) -> Iterator[Exchange]:
    known = {exchange.name for exchange in wanted.exchanges}
    level = re.compile(rf"{re.escape(names.prefix)}ladder\.\d+")
    for name, exchange in sorted(live.exchanges.items()):
        if level.fullmatch(name) and name not in known:
            yield exchange
