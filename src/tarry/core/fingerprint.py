"""Computes error fingerprints: errors that differ only in numbers and ids share one, so a dashboard can group them."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha1

LENGTH = 16
"""Hexadecimal digits: enough to distinguish a few million kinds of errors."""

_VARYING = re.compile(
    r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"  # a UUID
    r"|\b0x[0-9a-f]+\b"
    r"|\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b"  # a hash or an object id
    r"|\d+",
    re.IGNORECASE,
)
_FREE = re.compile(rf"{_VARYING.pattern}|\s{{2,}}|[^\S ]", re.IGNORECASE)


@lru_cache(maxsize=1_024)
def fingerprint(error_type: str | None, reason: str | None) -> str | None:
    """None if nothing is known about the error."""
    if not error_type and not reason:
        return None
    text = f"{error_type or ''}\n{blanked(reason or '')}"
    return sha1(text.encode(errors="backslashreplace"), usedforsecurity=False).hexdigest()[:LENGTH]


def blanked(reason: str) -> str:
    """`order 4711 not found` → `order # not found`."""
    return _VARYING.sub("#", " ".join(reason.split()))


def varying(reason: str) -> list[str]:
    """What stands before, between and after the parts in which errors with the same fingerprint can differ.

    `order 4711 not found` → `order `, ` not found`.
    """
    return _FREE.split(reason)
