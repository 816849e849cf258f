"""Computes the identity of a message and its retry id.

Two requests are about the same message only if queue, message id and content are equal: applications reuse business
ids, and merging by the id alone loses messages. The *identity* is a hash of these; it is not the *retry id*. Several
retries may have the same identity over time, and a retry keeps its id even if its content changes.
"""

from __future__ import annotations

import re
import struct
import uuid
from hashlib import blake2b, sha1

from tarry.amqp.field_tables import Entry, text_item
from tarry.amqp.properties import Properties
from tarry.contract import headers as h
from tarry.contract.safety import DIRECT_REPLY

NAMESPACE = uuid.UUID("5b0f2c1e-6d0c-5b7e-9f0a-7a7272790001")
"""Namespace of retry ids: a UUIDv5 of the identity and of what distinguishes two requests with that identity."""

MOST_ROUNDS = 1_000_000

is_canonical = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}").fullmatch
_hashed = sha1(NAMESPACE.bytes, usedforsecurity=False)

_length = struct.Struct(">Q").pack
_NONE = _length(2**64 - 1)
_HALF = 8
"""Bytes of each half of an identity. The first covers queue, message id and body, the second properties and headers."""

_ANY_CONTENT = "00" * _HALF

_NEVER = frozenset(name.encode() for name in h.COPIES)
_NOT_THE_USERS = _NEVER | frozenset(name.encode() for name in h.CONTRACT)
_OWNER = h.OWNER.encode()
_LEFT_OUT = (h.OURS.encode(), b"x-")


def content_identity(
    queue: str,
    message_id: str | None,
    body: bytes,
    properties: Properties,
    entries: list[Entry],
    *,
    contract: bool,
    envelope: bool = False,
    owner: str | None = None,
) -> str:
    """The identity of a message, as 32 hexadecimal digits. It is the same for the incoming and the returned message:
    everything that tarry or the broker adds, changes or removes in between is left out.

    `contract` means that the contract headers belong to the request and are left out; without it, an application may
    have headers of the same names, and they are part of its message. For an `envelope`, the body is its payload and the
    content type is left out; its `owner` counts as the header that it returns in.
    """
    first = _head(queue, message_id)
    first.update(body)
    table = properties.headers or b""
    skipped = _NOT_THE_USERS if contract else _NEVER
    users = [
        (name, table[at:end]) for name, _, at, end in entries if name not in skipped and not name.startswith(_LEFT_OUT)
    ]
    if envelope:
        users = [one for one in users if one[0] != _OWNER]
        users += [(_OWNER, text_item(owner))] if owner is not None else []
    content_type = None if envelope else properties.content_type
    pieces = [_piece(value) for value in (content_type, *_properties(properties))]
    for name, value in sorted(users):  # a broker may reorder them
        pieces += (_length(len(name)), name, _length(len(value)), value)
    return first.hexdigest() + blake2b(b"".join(pieces), digest_size=_HALF).hexdigest()


def id_identity(queue: str, message_id: str) -> str:
    """The identity by queue and message id alone, for policies that ask for it."""
    return _head(queue, message_id, person=b"id").hexdigest() + _ANY_CONTENT


def is_id_identity(identity: str) -> bool:
    return identity.endswith(_ANY_CONTENT)


def same_body(identity: str) -> str:
    """The part of an identity that covers queue, message id and body."""
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
    """The id of a new retry; a redelivered request gets the same id. A faster `uuid5(NAMESPACE, …)`."""
    hasher = _hashed.copy()
    hasher.update("\x00".join((identity, *parts)).encode())
    digest = bytearray(hasher.digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def message_id_of(properties: Properties) -> str | None:
    """The message id as text.

    Bytes that are not UTF-8 are escaped: any text will do if it stays the same. A NUL is escaped because Postgres does
    not store one.
    """
    raw = properties.message_id
    return raw.decode(errors="backslashreplace").replace("\x00", "\\x00") if raw else None
