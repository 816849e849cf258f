"""Validates requests: body size, a permitted origin queue, and names that a broker can store."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from tarry.amqp.delivery import Delivery
from tarry.contract.header_reader import RefusalError
from tarry.contract.message import Acceptance, Origin
from tarry.core.names import LONGEST_NAME, RESERVED

MOST_REMEMBERED = 4_096

_IN_NO_NAME = frozenset("\x00\r\n")
"""Characters not allowed in a queue name. The broker removes line ends, so it would bind an unchecked name."""


def check_size(delivery: Delivery, accept: Acceptance) -> None:
    if len(delivery.body) > accept.largest_body:
        size, most = len(delivery.body) / 2**20, accept.largest_body / 2**20
        raise RefusalError(f"its body has {size:.1f} MiB; the limit is {most:g} MiB")


def check_origin(origin: Origin, accept: Acceptance) -> None:
    """Check an origin. Accepted origins are remembered: there are few of them, and the result does not change."""
    if origin in accept.sound:
        return
    _check_queue(origin.queue, accept)
    _check_name("exchange", origin.exchange)
    _check_name("routing key", origin.routing_key)
    _check_unreserved(origin.routing_key)
    if len(accept.sound) >= MOST_REMEMBERED:
        accept.sound.clear()
    accept.sound.add(origin)


def is_destination(queue: str, destinations: Iterable[str]) -> bool:
    """Whether the topology allows messages to return to a queue; `destinations` are its globs."""
    return any(fnmatchcase(queue, glob) for glob in destinations)


def check_delivered_key(key: str | bytes) -> None:
    """Check the delivery's routing key: the message returns with it unless the request names another."""
    if isinstance(key, bytes):
        raise RefusalError("its routing key is not UTF-8 text")
    _check_unreserved(key)


def can_name_queue(name: str) -> bool:
    return bool(name) and is_name(name) and _IN_NO_NAME.isdisjoint(name)


def is_name(name: str) -> bool:
    """Whether AMQP can carry it as a name. A NUL is of no use in a name, and Postgres does not store one; U+FFFD
    replaces bytes that were not UTF-8.
    """
    return len(name.encode()) <= LONGEST_NAME and "\x00" not in name and "\ufffd" not in name


def _check_queue(queue: str, accept: Acceptance) -> None:
    if not queue or len(queue.encode()) > LONGEST_NAME or not _IN_NO_NAME.isdisjoint(queue):
        raise RefusalError(f"{queue[:40]!r} cannot be the name of an origin queue")
    if accept.names.is_ours(queue):
        raise RefusalError(f"the origin {queue!r} is a queue of tarry's or the broker's own")
    if not is_destination(queue, accept.destinations):
        raise RefusalError(f"the origin {queue!r} is outside the topology's `destinations`")


def _check_name(what: str, name: str) -> None:
    """A NUL is of no use in a name, and Postgres does not store one."""
    if len(name.encode()) > LONGEST_NAME:
        raise RefusalError(f"its {what} is longer than {LONGEST_NAME} bytes")
    if "\x00" in name:
        raise RefusalError(f"its {what} contains a NUL: {name[:40]!r}")


def _check_unreserved(key: str) -> None:
    if key.startswith(RESERVED):
        raise RefusalError(f"its routing key starts with {RESERVED!r}, which is reserved for tarry")
