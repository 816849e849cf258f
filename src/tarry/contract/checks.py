"""What a request must not ask for: a way into queues it has no business with, or names that no broker can hold."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from tarry.contract.message import Acceptance, Delivery, Origin
from tarry.contract.reading import RefusalError
from tarry.core.names import LONGEST_NAME, RESERVED

MOST_REMEMBERED = 4_096

_IN_NO_NAME = frozenset("\x00\r\n")
"""A broker takes line ends out of a queue's name: what we look at must be what it will bind."""


def check_size(delivery: Delivery, accept: Acceptance) -> None:
    if len(delivery.body) > accept.largest_body:
        size, most = len(delivery.body) / 2**20, accept.largest_body / 2**20
        raise RefusalError(f"its body has {size:.1f} MiB, and retries carry {most:g} MiB at the most")


def check_origin(origin: Origin, accept: Acceptance) -> None:
    """Once for each: origins are few, and what was good stays good."""
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
    """Whether the topology lets messages return to a queue; `destinations` are its globs."""
    return any(fnmatchcase(queue, glob) for glob in destinations)


def check_delivered_key(key: str | bytes) -> None:
    """The key it came with is the one it returns with, unless the request names another."""
    if isinstance(key, bytes):
        raise RefusalError("its routing key is not UTF-8 text")
    _check_unreserved(key)


def can_name_queue(name: str) -> bool:
    return bool(name) and is_name(name) and _IN_NO_NAME.isdisjoint(name)


def is_name(name: str) -> bool:
    """Whether it fits where AMQP has a name. A NUL is no use in any, and Postgres takes none; U+FFFD stands for bytes
    that were no text.
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
    """A NUL is no use in any name, and Postgres takes none."""
    if len(name.encode()) > LONGEST_NAME:
        raise RefusalError(f"its {what} is longer than {LONGEST_NAME} bytes")
    if "\x00" in name:
        raise RefusalError(f"its {what} holds a NUL: {name[:40]!r}")


def _check_unreserved(key: str) -> None:
    if key.startswith(RESERVED):
        raise RefusalError(f"its routing key starts with {RESERVED!r}, which is reserved for tarry")
