"""Resolves ids that a user types: a whole id, or a prefix that is long enough to be unique. Pure."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from tarry.core.fingerprint import LENGTH
from tarry.errors import AmbiguousIdError

SHORTEST = 4
SHORTEST_NUMBER = 8
"""A longer minimum for digits only: an order number must not be taken for the prefix of a retry id."""

SHOWN = 10
"""Most candidates that an error lists."""

RULE = f"The beginning of an id needs {SHORTEST} characters, or {SHORTEST_NUMBER} if all of them are digits."

_UUID_DIGITS = 32
_HEX = re.compile(r"[0-9a-f]+")

Candidates = Sequence[tuple[str, str]]
"""Ids, each with a short description."""


class IdRange(NamedTuple):
    """All ids with the prefix `beginning` lie between `low` and `high`, inclusive."""

    low: str
    high: str
    beginning: str


def as_uuid(text: str) -> str | None:
    """The id in canonical form; None if it is not a whole UUID."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return None


def uuid_range(text: str) -> IdRange | None:
    """None if it cannot be the prefix of a UUID, is a whole UUID, or is too short."""
    start = _typed(text)
    digits = start.replace("-", "")
    if not _HEX.fullmatch(digits) or not _long_enough(digits) or len(digits) >= _UUID_DIGITS:
        return None
    low, high = (str(uuid.UUID(digits.ljust(_UUID_DIGITS, end))) for end in "0f")
    if "-" in start and not low.startswith(start):
        return None
    return IdRange(low, high, low[: len(digits) + sum(len(digits) > at for at in (8, 12, 16, 20))])


def fingerprint_range(text: str) -> IdRange | None:
    """None if it cannot be the prefix of a fingerprint, is a whole fingerprint, or is too short."""
    start = _typed(text)
    if not _HEX.fullmatch(start) or not SHORTEST <= len(start) < LENGTH:
        return None
    return IdRange(start.ljust(LENGTH, "0"), start.ljust(LENGTH, "f"), start)


def only(text: str, found: Candidates) -> str | None:
    """The only id with this prefix; None if there is none. Raises AmbiguousIdError if there are several."""
    if len(found) > 1:
        listed = ", ".join(f"{one} ({about})" if about else one for one, about in found[:SHOWN])
        number = f"more than {SHOWN}" if len(found) > SHOWN else str(len(found))
        raise AmbiguousIdError(f"{text!r} is the beginning of {number} ids: {listed}. Give more of it.")
    return found[0][0] if found else None


def _typed(text: str) -> str:
    """Normalise the input; a trailing ellipsis, as in printed ids, is removed."""
    return text.strip().rstrip("…").lower()


def _long_enough(digits: str) -> bool:
    return len(digits) >= (SHORTEST_NUMBER if digits.isdecimal() else SHORTEST)
