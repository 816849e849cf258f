"""Which message a request speaks of, and what tarry's own headers say of it.

Two messages are one only if queue, message id and content agree: business ids are reused in the wild, and merging by
the id alone loses messages. The *identity* says so; it is not the *retry id*. Several retries may have one identity
over time, and a retry keeps its id whatever becomes of its content.
"""

from __future__ import annotations

import re
import struct
import uuid
from hashlib import blake2b, sha1
from typing import NamedTuple

from tarry.contract import headers as h
from tarry.contract.fields import Entry
from tarry.contract.properties import Properties
from tarry.contract.reading import HeaderReader, RefusalError
from tarry.contract.safety import DIRECT_REPLY

NAMESPACE = uuid.UUID("5b0f2c1e-6d0c-5b7e-9f0a-7a7272790001")
"""Of retry ids: UUIDv5 of the identity and of what tells two requests with that identity apart."""

MOST_ROUNDS = 1_000_000

is_canonical = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}").fullmatch
_hashed = sha1(NAMESPACE.bytes, usedforsecurity=False)

_length = struct.Struct(">Q").pack
_NONE = _length(2**64 - 1)
_HALF = 8
"""Bytes of each half of an identity: queue, message id and body; properties and headers."""

_ANY_CONTENT = "00" * _HALF

_NEVER = frozenset(name.encode() for name in h.COPIES)
_NOT_THE_USERS = _NEVER | frozenset(name.encode() for name in h.CONTRACT)
_LEFT_OUT = (h.OURS.encode(), b"x-")


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


def content_identity(
    queue: str,
    message_id: str | None,
    body: bytes,
    properties: Properties,
    entries: list[Entry],
    *,
    contract: bool,
    envelope: bool = False,
) -> str:
    """The identity of a message, as 32 hexadecimal digits. It is the same for the message that comes and for the one
    that returns: whatever tarry or the broker adds, changes or removes on the way is left out.

    `contract` says that the headers of tarry's contract are the request's own words; elsewhere an application may have
    headers of the same names, and they are part of its message. Of an `envelope` the body is what it holds, and the
    content type says nothing.
    """
    first = _head(queue, message_id)
    first.update(body)
    table = properties.headers or b""
    skipped = _NOT_THE_USERS if contract else _NEVER
    users = [
        (name, table[at:end]) for name, _, at, end in entries if name not in skipped and not name.startswith(_LEFT_OUT)
    ]
    content_type = None if envelope else properties.content_type
    pieces = [_piece(value) for value in (content_type, *_properties(properties))]
    for name, value in sorted(users):  # a broker may sort them
        pieces += (_length(len(name)), name, _length(len(value)), value)
    return first.hexdigest() + blake2b(b"".join(pieces), digest_size=_HALF).hexdigest()


def id_identity(queue: str, message_id: str) -> str:
    """The identity by message id alone, for policies that want it."""
    return _head(queue, message_id, person=b"id").hexdigest() + _ANY_CONTENT


def is_id_identity(identity: str) -> bool:
    return identity.endswith(_ANY_CONTENT)


def same_body(identity: str) -> str:
    """The part of an identity that stands for queue, message id and body."""
    return identity[: 2 * _HALF]


def _head(queue: str, message_id: str | None, person: bytes = b"") -> blake2b:
    hasher = blake2b(digest_size=_HALF, person=person)
    hasher.update(_piece(queue.encode()) + _piece(None if message_id is None else message_id.encode()))
    return hasher


def _properties(of: Properties) -> tuple[bytes | int | None, ...]:
    reply_to = None if of.reply_to == DIRECT_REPLY else of.reply_to
    return (of.content_encoding, of.correlation_id, reply_to, of.timestamp, of.type, of.app_id)


def _piece(value: bytes | int | None) -> bytes:
    if value is None:
        return _NONE
    raw = value if isinstance(value, bytes) else _length(value)
    return _length(len(raw)) + raw


def retry_id(identity: str, *parts: str) -> str:
    """The id of a new retry: the same for a request that is delivered again, `uuid5(NAMESPACE, …)`, only faster."""
    hasher = _hashed.copy()
    hasher.update("\x00".join((identity, *parts)).encode())
    digest = bytearray(hasher.digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def message_id_of(properties: Properties) -> str | None:
    """Bytes that are not UTF-8 are escaped: any id will do, as long as it stays the same; Postgres takes no NUL."""
    raw = properties.message_id
    return raw.decode(errors="backslashreplace").replace("\x00", "\\x00") if raw else None
