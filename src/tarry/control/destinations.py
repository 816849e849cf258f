"""Which destinations there are, what they are called, and which of them a pattern means."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

import structlog

from tarry.broker.management import Management
from tarry.control.desk import Desk
from tarry.core.names import Destination
from tarry.errors import BrokerError
from tarry.router.threads import in_thread

log = structlog.get_logger()

_EXCHANGE = "exchange:"


def destination_of(label: str) -> Destination:
    """`orders` is a queue, `exchange:events` an exchange."""
    if label.startswith(_EXCHANGE):
        return Destination("exchange", label.removeprefix(_EXCHANGE))
    return Destination("queue", label)


def is_glob(pattern: str) -> bool:
    return any(character in pattern for character in "*?[")


def matching(pattern: str, labels: Iterable[str]) -> list[str]:
    """By glob; a name that has glob characters in it is also itself."""
    return sorted(label for label in labels if label == pattern or fnmatch.fnmatchcase(label, pattern))


async def seen_in_books(desk: Desk) -> set[str]:
    """Those for which something is open."""
    return {row[0] for row in await desk.books.rows("open_queues")}


async def bound_on_broker(desk: Desk) -> set[str] | None:
    """All that a router ever delivered to, or that are attached; None if the management API does not say."""
    try:
        found = await in_thread(lambda: Management(desk.address).bindings_from(desk.names.deliver), "destinations")
    except BrokerError as error:
        log.warning("only destinations with open retries are known", reason=str(error))
        return None
    return {Destination(one["destination_type"], one["destination"]).label for one in found}


async def held_on_broker(desk: Desk) -> set[str]:
    """Destinations whose returns the broker holds, whatever the books say; none if the management API does not say."""
    try:
        found = await in_thread(lambda: Management(desk.address).bindings_from(desk.names.held_gate), "holds")
    except BrokerError:
        return set()
    stem = desk.names.held_queue(Destination("queue", ""))
    return {one["destination"].removeprefix(stem) for one in found if one["destination"].startswith(stem)}
