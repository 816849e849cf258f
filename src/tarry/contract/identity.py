"""Which retry a request belongs to, and what tarry's own headers say of it."""

from __future__ import annotations

import re
import uuid
from hashlib import sha1
from typing import NamedTuple

from tarry.contract import headers as h
from tarry.contract.properties import Properties
from tarry.contract.reading import HeaderReader, RefusalError

NAMESPACE = uuid.UUID("5b0f2c1e-6d0c-5b7e-9f0a-7a7272790001")
"""Of retry ids: UUIDv5 of (message id, origin queue)."""

MOST_ROUNDS = 1_000_000

is_canonical = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}").fullmatch
_hashed = sha1(NAMESPACE.bytes, usedforsecurity=False)


class Own(NamedTuple):
    """What tarry wrote on the message when it sent it back: this is a later round of a known retry."""

    retry_id: str | None
    """None where the message returned through its exchange and came to another queue: there it is a retry of its own,
    but one that goes on counting, or two queues could play it to each other for ever."""
    sender_id: str
    round: int
    retry_count: int
    since_ms: int | None
    exchange: str | None
    routing_key: str | None
    contract: bool


def read_own(headers: HeaderReader, queue: str) -> Own | None:
    """None where there is nothing of ours, or where it speaks of another queue: an application that forwards a
    message with all its headers makes a new message of it.
    """
    if not headers.has(h.ID) or not headers.has(h.QUEUE):
        return None
    same_queue = headers.text(h.QUEUE) == queue
    if not same_queue and not headers.has(h.VIA):
        return None
    sender_id = _checked(headers.text(h.ID) or "")
    return Own(
        retry_id=sender_id if same_queue else None,
        sender_id=sender_id,
        round=headers.count(h.ROUND, MOST_ROUNDS) or 0,
        retry_count=headers.count(h.COUNT, MOST_ROUNDS) or 0,
        since_ms=headers.count(h.SINCE),
        exchange=headers.text(h.EXCHANGE),
        routing_key=headers.text(h.KEY),
        contract=headers.has(h.FORM),
    )


def _checked(text: str) -> str:
    if is_canonical(text):
        return text
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise RefusalError(f"the header `{h.ID}` is no retry id: {text[:40]!r}") from None


def retry_id(message_id: str, queue: str) -> str:
    """The same message failing in the same queue is the same retry: `uuid5(NAMESPACE, …)`, only faster."""
    hasher = _hashed.copy()
    hasher.update(f"{message_id}\x00{queue}".encode())
    digest = bytearray(hasher.digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def known_id(own: Own | None, message_id: str | None, queue: str) -> str | None:
    """None where nothing tells two equal messages apart: such a one gets a random id."""
    if own is not None and own.retry_id is not None:
        return own.retry_id
    if message_id is not None:
        return retry_id(message_id, queue)
    return retry_id(own.sender_id, queue) if own is not None else None


def message_id_of(properties: Properties) -> str | None:
    """Bytes that are not UTF-8 are escaped: any id will do, as long as it stays the same; Postgres takes no NUL."""
    raw = properties.message_id
    return raw.decode(errors="backslashreplace").replace("\x00", "\\x00") if raw else None
