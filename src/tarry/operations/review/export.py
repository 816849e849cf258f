"""Exports messages in review to files: each body unchanged, its metadata as JSON, and one index.

Messages are read from the queue, which is authoritative, and stay in it. No file is ever overwritten, and no file name
comes from a message.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tarry.amqp.delivery import Delivery
from tarry.core.json_types import encode_base64
from tarry.errors import NotFoundError, SettingsError
from tarry.operations.context import OperatorContext
from tarry.operations.review.browse import (
    MOST,
    Filter,
    ReviewDetail,
    ReviewItem,
    ReviewPayload,
    page,
    stored_payload,
)
from tarry.operations.review.message import Key, ReviewHeaders, describe, key_of, read_review_headers
from tarry.operations.review.reconcile import look_through

INDEX = "index.json"


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export."""

    folder: str
    count: int
    not_in_queue: tuple[str, ...]
    """Retry ids that are in review by the store, but not in the queue."""


@dataclass(slots=True)
class ExportFolder:
    """A new folder with the exported messages."""

    folder: Path
    progress: Callable[[int], None]
    index: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def new(cls, into: Path, progress: Callable[[int], None]) -> ExportFolder:
        return cls(new_folder(into), progress)

    def add(self, name: str, about: dict[str, Any], body: bytes) -> None:
        """`name` is the file name without its ending."""
        about |= {"body": f"{name}.body"}
        write_new(self.folder / f"{name}.body", body)
        write_new(self.folder / f"{name}.json", _json(about))
        self.index.append(
            {one: about[one] for one in ("retry_id", "round", "message_id", "queue", "reason", "size", "body")}
        )
        self.progress(len(self.index))

    def finish(self, about: dict[str, Any], missing: tuple[str, ...]) -> Exported:
        """Writes the index."""
        write_new(self.folder / INDEX, _json(about | {"messages": self.index, "not_in_the_queue": list(missing)}))
        return Exported(str(self.folder), len(self.index), missing)


@dataclass(slots=True)
class _Writer:
    into: ExportFolder
    items: dict[Key, ReviewItem]
    unknown: bool
    """Export the messages that the store does not have in review, instead of `items`."""
    known: set[Key]
    _written: set[Key] = field(default_factory=set)

    def __call__(self, delivery: Delivery) -> bool:
        key = key_of(delivery)
        if self.unknown:
            if key is None or key not in self.known:
                self._write(delivery, f"unknown-{len(self.into.index) + 1:06d}", None)
        elif key in self.items and key not in self._written:
            self._written.add(key)
            self._write(delivery, file_name(*key), self.items[key])
        return False

    def _write(self, delivery: Delivery, name: str, item: ReviewItem | None) -> None:
        self.into.add(name, _about(delivery, read_review_headers(delivery), item), delivery.body)

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(sorted(key[0] for key in self.items.keys() - self._written))


async def export(
    context: OperatorContext,
    chosen: Filter,
    into: Path,
    *,
    unknown: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Exported:
    """With `unknown`, exports the messages that the store does not have in review, and ignores the filter."""
    items = {} if unknown else await _items(context, chosen)
    if not items and not unknown:
        raise NotFoundError("Nothing in review matches: see `tarry review list` for what there is.")
    known = {(one.retry_id, one.round) for one in (await _items(context, Filter())).values()} if unknown else set()
    writer = _Writer(ExportFolder.new(into, progress), items, unknown, known)
    await look_through(context, writer)
    about = {"queue": context.names.review_queue, "filter": chosen.conditions(), "unknown_to_the_books": unknown}
    return writer.into.finish(about, writer.missing)


async def payload(context: OperatorContext, called: str) -> ReviewPayload:
    """The payload from the store, or from the queue if the store did not keep it."""
    item, stored = await stored_payload(context, called)
    found = stored or await _payload_in_queue(context, (item.retry_id, item.round))
    if found is None:
        raise NotFoundError(f"The payload of {called!r} is neither in the store nor in the queue.")
    return found


async def _payload_in_queue(context: OperatorContext, wanted: Key) -> ReviewPayload | None:
    seen: list[Delivery] = []

    def note(delivery: Delivery) -> bool:
        if key_of(delivery) == wanted:
            seen.append(delivery)
        return False

    await look_through(context, note)
    if not seen:
        return None
    properties = seen[0].properties
    return ReviewPayload(seen[0].body, describe(properties), b"".join(properties.encode()))


async def _items(context: OperatorContext, chosen: Filter) -> dict[Key, ReviewItem]:
    found: dict[Key, ReviewItem] = {}
    cursor: str | None = None
    while True:
        listed = await page(context, chosen, limit=MOST, cursor=cursor)
        found |= {(one.retry_id, one.round): one for one in listed.items}
        if (cursor := listed.next) is None:
            return found


def file_name(retry_id: str, round_: int) -> str:
    """The name of the files of one message, without their endings."""
    return f"{retry_id}.{round_}"


def _about(delivery: Delivery, headers: ReviewHeaders, item: ReviewItem | None) -> dict[str, Any]:
    retry_id, round_ = headers.key or (None, None)
    encoded = b"".join(delivery.properties.encode())
    return {
        "retry_id": retry_id,
        "round": round_,
        "message_id": headers.message_id,
        "queue": headers.queue,
        "exchange": headers.exchange,
        "routing_key": headers.routing_key,
        "reason": headers.reason,
        "retry_count": headers.retry_count,
        "size": len(delivery.body),
        "in_review_since": item.since.isoformat() if item else None,
        "error_type": item.error_type if item else headers.error_type,
        "error_reason": item.error_reason if item else headers.error_reason,
        "fingerprint": item.fingerprint if item else None,
        "owner": item.owner if item else headers.owner,
        "properties": describe(delivery.properties),
        "properties_on_the_wire": encode_base64(encoded),
    }


def about_stored(found: ReviewDetail, payload: ReviewPayload) -> dict[str, Any]:
    """The metadata of a message that was read from the store."""
    return {
        "retry_id": found.retry_id,
        "round": found.round,
        "message_id": found.message_id,
        "queue": found.queue,
        "exchange": found.exchange,
        "routing_key": found.routing_key,
        "reason": found.reason,
        "retry_count": found.retry_count,
        "size": len(payload.body),
        "in_review_since": found.since.isoformat(),
        "error_type": found.error_type,
        "error_reason": found.error_reason,
        "fingerprint": found.fingerprint,
        "owner": found.owner,
        "properties": payload.properties,
        "properties_on_the_wire": encode_base64(payload.wire_properties),
    }


def _json(value: Any) -> bytes:
    """Escaped to ASCII, so that printing the file to a terminal prints no control characters."""
    return (json.dumps(value, indent=2) + "\n").encode()


def new_folder(into: Path) -> Path:
    """Creates the folder if it does not exist, readable only by its owner. A folder that is not empty is refused."""
    try:
        into.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(into.iterdir()):
            raise SettingsError(f"{into} is not empty: an export overwrites nothing, so name a new folder.")
    except OSError as error:
        raise SettingsError(f"{into} cannot be written to: {error.strerror}. Name another folder.") from None
    return into


def write_new(path: Path, data: bytes) -> None:
    """Fails if a file or a link of that name exists."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be written: {error.strerror}. All messages are still in the queue."
        ) from None
