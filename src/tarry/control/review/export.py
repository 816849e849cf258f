"""Messages in review as files: each one's body as it is, what is known of it as JSON, and an index of them all.

They are read from the queue, which is the judge, and stay in it. Nothing is ever overwritten, and no name of a file
comes from a message.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tarry.contract.request import Delivery
from tarry.control.desk import Desk
from tarry.control.review.card import Card, Key, key_of, read_card
from tarry.control.review.check import look_through
from tarry.control.review.describe import describe
from tarry.control.review.filters import Filter
from tarry.control.review.listing import MOST, Detail, Item, page
from tarry.errors import NotFoundError, SettingsError

INDEX = "index.json"


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    folder: str
    count: int
    not_in_queue: tuple[str, ...]
    """Retry ids that the books have in review and the queue does not."""


@dataclass(slots=True)
class _Writer:
    folder: Path
    items: dict[Key, Item]
    unknown: bool
    """Those that the books do not know, instead."""
    known: set[Key]
    progress: Callable[[int], None]
    index: list[dict[str, Any]] = field(default_factory=list)
    _written: set[Key] = field(default_factory=set)

    def __call__(self, delivery: Delivery) -> bool:
        key = key_of(delivery)
        if self.unknown:
            if key is None or key not in self.known:
                self._write(delivery, f"unknown-{len(self.index) + 1:06d}", None)
        elif key in self.items and key not in self._written:
            self._written.add(key)
            self._write(delivery, f"{key[0]}.{key[1]}", self.items[key])
        return False

    def _write(self, delivery: Delivery, name: str, item: Item | None) -> None:
        about = _about(delivery, read_card(delivery), item) | {"body": f"{name}.body"}
        write_new(self.folder / f"{name}.body", delivery.body)
        write_new(self.folder / f"{name}.json", _json(about))
        self.index.append(
            {one: about[one] for one in ("retry_id", "round", "message_id", "queue", "reason", "size", "body")}
        )
        self.progress(len(self.index))

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(sorted(key[0] for key in self.items.keys() - self._written))


async def export(
    desk: Desk, chosen: Filter, into: Path, *, unknown: bool = False, progress: Callable[[int], None] = lambda _: None
) -> Exported:
    """With `unknown`, what the books do not have in review, whatever the filter says."""
    items = {} if unknown else await _items(desk, chosen)
    if not items and not unknown:
        raise NotFoundError("Nothing in review fits: see `tarry review list` for what there is.")
    known = {(one.retry_id, one.round) for one in (await _items(desk, Filter())).values()} if unknown else set()
    folder = new_folder(into)
    writer = _Writer(folder, items, unknown, known, progress)
    await look_through(desk, writer)
    said = {"queue": desk.names.review_queue, "filter": chosen.told(), "unknown_to_the_books": unknown}
    write_new(folder / INDEX, _json(said | {"messages": writer.index, "not_in_the_queue": list(writer.missing)}))
    return Exported(str(folder), len(writer.index), writer.missing)


async def read_from_queue(desk: Desk, found: Detail) -> Detail:
    """The same with its payload, which the books did not keep; without, if it is not in the queue."""
    wanted, seen = (found.item.retry_id, found.item.round), list[Delivery]()

    def note(delivery: Delivery) -> bool:
        if key_of(delivery) == wanted:
            seen.append(delivery)
        return False

    await look_through(desk, note)
    if not seen:
        return found
    return replace(found, body=seen[0].body, properties=describe(seen[0].properties))


async def _items(desk: Desk, chosen: Filter) -> dict[Key, Item]:
    found: dict[Key, Item] = {}
    cursor: str | None = None
    while True:
        listed = await page(desk, chosen, limit=MOST, cursor=cursor)
        found |= {(one.retry_id, one.round): one for one in listed.items}
        if (cursor := listed.cursor) is None:
            return found


def _about(delivery: Delivery, card: Card, item: Item | None) -> dict[str, Any]:
    retry_id, round_ = card.key or (None, None)
    encoded = b"".join(delivery.properties.encode())
    return {
        "retry_id": retry_id,
        "round": round_,
        "message_id": card.message_id,
        "queue": card.queue,
        "exchange": card.exchange,
        "routing_key": card.routing_key,
        "reason": card.reason,
        "retry_count": card.retry_count,
        "size": len(delivery.body),
        "in_review_since": item.since.isoformat() if item else None,
        "error_type": item.error_type if item else card.error_type,
        "error_reason": item.error_reason if item else card.error_reason,
        "fingerprint": item.fingerprint if item else None,
        "properties": describe(delivery.properties),
        "properties_on_the_wire": base64.b64encode(encoded).decode(),
    }


def _json(said: Any) -> bytes:
    """Escaped to ASCII: whoever prints such a file to a terminal prints no control characters."""
    return (json.dumps(said, indent=2) + "\n").encode()


def new_folder(into: Path) -> Path:
    """Made if it is not there; one that holds anything is left alone. Only its owner can look into it."""
    try:
        into.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(into.iterdir()):
            raise SettingsError(f"{into} is not empty: an export overwrites nothing, so name a new folder.")
    except OSError as error:
        raise SettingsError(f"{into} cannot be written to: {error.strerror}. Name another folder.") from None
    return into


def write_new(path: Path, data: bytes) -> None:
    """Fails if there is such a file, or a link of that name."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be written: {error.strerror}. All messages are still in the queue."
        ) from None
