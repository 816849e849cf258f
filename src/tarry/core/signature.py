"""Signatures of webhooks, as Standard Webhooks defines them: HMAC-SHA256 over id, timestamp and body. Pure.

The same code signs deliveries and verifies the inbound hook.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"

PREFIX = "whsec_"
SHORTEST_KEY = 24
"""Bytes, as Standard Webhooks asks for."""
LONGEST_KEY = 64

TOLERANCE_S = 300
"""How old, or how far in the future, a timestamp may be."""

LONGEST_ID = 255

HOW_TO_MAKE = "make one with: echo whsec_$(openssl rand -base64 32)"


class BadSecretError(ValueError):
    """A secret that cannot be used. The message quotes nothing of it, and is worded as the end of a sentence."""


class BadSignatureError(ValueError):
    """A request that is not signed, or not by this secret, or too long ago. The message says which."""


@dataclass(frozen=True, slots=True)
class Secret:
    """One or more keys. All of them sign, and each is enough to verify, so that a secret can be changed."""

    keys: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Secret:
        """From `whsec_…`, or several of them with spaces between."""
        keys = tuple(_key(word) for word in text.split())
        if not keys:
            raise BadSecretError(f"it is empty; {HOW_TO_MAKE}")
        return cls(keys)

    def sign(self, id_: str, timestamp: int, body: bytes) -> dict[str, str]:
        """The headers of a signed request."""
        signatures = (base64.b64encode(one).decode() for one in self._digests(id_, timestamp, body))
        return {ID: id_, TIMESTAMP: str(timestamp), SIGNATURE: " ".join(f"v1,{one}" for one in signatures)}

    def verify(self, headers: Mapping[str, str], body: bytes, now_s: float) -> str:
        """The id of the request; raises BadSignatureError."""
        id_, given = headers.get(ID, ""), headers.get(SIGNATURE, "")
        if not id_ or not given or TIMESTAMP not in headers:
            raise BadSignatureError(f"it needs the headers {ID}, {TIMESTAMP} and {SIGNATURE}")
        if not is_id(id_):
            raise BadSignatureError(f"{ID} must have at most {LONGEST_ID} printable characters, and no full stop")
        timestamp = _timestamp(headers[TIMESTAMP])
        if abs(now_s - timestamp) > TOLERANCE_S:
            raise BadSignatureError(f"{TIMESTAMP} is more than {TOLERANCE_S // 60} minutes from the time here")
        expected = self._digests(id_, timestamp, body)
        if not any(hmac.compare_digest(mine, theirs) for mine in expected for theirs in _signatures(given)):
            raise BadSignatureError("no signature matches: the secret or the body differs")
        return id_

    def _digests(self, id_: str, timestamp: int, body: bytes) -> list[bytes]:
        content = f"{id_}.{timestamp}.".encode() + body
        return [hmac.digest(key, content, hashlib.sha256) for key in self.keys]


def is_id(text: str) -> bool:
    """Whether it can be signed. A full stop ends the id in what is signed: with one in the id, part of it could be
    taken for the timestamp, and the same signature would be that of a request with another id.
    """
    return 0 < len(text) <= LONGEST_ID and text.isprintable() and "." not in text


def _key(word: str) -> bytes:
    try:
        key = base64.b64decode(word.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise BadSecretError(f"it is not `{PREFIX}` and base64; {HOW_TO_MAKE}") from None
    if not SHORTEST_KEY <= len(key) <= LONGEST_KEY:
        size = f"from {SHORTEST_KEY} to {LONGEST_KEY} bytes"
        raise BadSecretError(f"it has {len(key)} bytes and must have {size}; {HOW_TO_MAKE}")
    return key


def _timestamp(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(2**63))):
        raise BadSignatureError(f"{TIMESTAMP} must be in seconds since 1970")
    return int(text)


def _signatures(given: str) -> list[bytes]:
    """Those of version 1; others are ignored."""
    found = []
    for word in given.split():
        version, _, text = word.partition(",")
        if version == "v1":
            try:
                found.append(base64.b64decode(text, validate=True))
            except (binascii.Error, ValueError):
                continue
    return found
