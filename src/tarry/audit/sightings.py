"""Reading what passes: which round of which retry a message is, and when it passed."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable

import structlog

from tarry.audit.records import Return
from tarry.contract import headers as h
from tarry.contract.fields import BadTableError, Field, pick, walk_array
from tarry.contract.identity import MOST_ROUNDS
from tarry.contract.reading import HeaderReader, RefusalError
from tarry.contract.request import Delivery
from tarry.core.names import Names

log = structlog.get_logger()

BEHIND_MS = 2_000
"""A sighting so late may have waited for us in the queue; then the broker's own time of its last step is nearer."""

_FIRST = "x-first-death-queue"
_READ = frozenset(name.encode() for name in (h.ID, h.ROUND, h.DUE, h.COUNT, h.QUEUE, h.DEATHS, _FIRST))
_TIME = b"time"
_seconds = struct.Struct(">Q")


def read_sighting(delivery: Delivery, arrived_ms: Callable[[int], int], names: Names) -> Return | None:
    """None where it has none of our headers: somebody else put it there, and it is passed over."""
    try:
        fields = pick(delivery.properties.headers or b"", _READ)
        headers = HeaderReader(fields)
        retry_id, round_, due = headers.text(h.ID), headers.count(h.ROUND, MOST_ROUNDS), headers.count(h.DUE)
        count, queue = headers.count(h.COUNT, MOST_ROUNDS), headers.text(h.QUEUE)
        tier = headers.text(_FIRST) or ""
        if retry_id is None or round_ is None or due is None:
            raise RefusalError("it has none of tarry's headers")  # noqa: TRY301 - told in one place
        uuid.UUID(retry_id)
        at_ms = passed_ms(arrived_ms(delivery.tag), due, fields.get(h.DEATHS.encode()))
    except (RefusalError, BadTableError, ValueError) as error:
        log.warning("not a return", error=str(error))
        return None
    tier = tier if tier.startswith(f"{names.delay}.") else f"{names.prefix}ladder"
    return Return(retry_id, round_, queue or "", count or 0, due, at_ms, delivery.redelivered, tier)


def passed_ms(arrived_ms: int, due_ms: int, deaths: Field | None) -> int:
    """When it passed. The broker's time has whole seconds: the end of that second, so that nothing looks early."""
    if arrived_ms - due_ms <= BEHIND_MS:
        return arrived_ms
    last = last_death_s(deaths)
    return arrived_ms if last is None else min(arrived_ms, max(due_ms, last * 1_000 + 999))


def last_death_s(deaths: Field | None) -> int | None:
    """The newest of all entries: old brokers do not keep their order."""
    if deaths is None or deaths.kind != b"A":
        return None
    times = [
        int(_seconds.unpack(found.value)[0])
        for item in walk_array(deaths.value)
        if item.kind == b"F" and (found := pick(item.value, {_TIME}).get(_TIME)) is not None and found.kind == b"T"
    ]
    return max(times, default=None)
