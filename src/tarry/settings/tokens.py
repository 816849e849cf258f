"""Tokens of the HTTP API. The settings contain only hashes of the tokens."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tarry.core.queue_scope import QueueScope

_MARK = "tarry_"
"""The prefix of every token, so that a token that leaked into a log or a repository can be found."""

_ENTRY = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,63}):(?P<role>[a-z]+):(?P<digest>[0-9a-f]{64})(?::(?P<queues>[^\s,]+))?",
    re.ASCII,
)
_GLOB = re.compile(r"[^\s,|\[\x00-\x1f\x7f]{1,255}")
"""Commas and white space separate entries, `|` separates globs: in a glob, `?` stands for any of these, and for `[`."""


class Role(StrEnum):
    """What a token allows."""

    LOOK = "look"
    """Read everything except payloads; change nothing."""
    OPERATE = "operate"
    """Read everything, and carry out operations."""


@dataclass(frozen=True, slots=True)
class Token:
    """One entry of API_TOKENS."""

    name: str
    role: Role
    digest: str
    """SHA-256 of the token. Tokens are long and random, so a salt or a slow hash would add no security."""
    queues: tuple[str, ...] = ()
    """Globs of the queues that it is limited to; none for all queues."""

    def __str__(self) -> str:
        entry = f"{self.name}:{self.role}:{self.digest}"
        return f"{entry}:{'|'.join(self.queues)}" if self.queues else entry

    @property
    def scope(self) -> QueueScope | None:
        return QueueScope(self.queues) if self.queues else None


def new_token(name: str, role: Role, queues: Sequence[str] = ()) -> tuple[str, Token]:
    """A new token, which is shown once, and its entry for API_TOKENS."""
    made = _MARK + secrets.token_urlsafe(32)
    return made, parse_entry(str(Token(name, role, _digest(made), tuple(queues))))


def parse_tokens(text: str) -> tuple[Token, ...]:
    """Parses entries separated by commas or white space. Error messages do not quote them."""
    found = tuple(parse_entry(entry) for entry in re.split(r"[,\s]+", text) if entry)
    names = [token.name for token in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"has {', '.join(sorted(twice))} twice: each token needs its own name")
    return found


def parse_entry(entry: str) -> Token:
    """Parses `name:role:hash` or `name:role:hash:glob|glob`."""
    parts = _ENTRY.fullmatch(entry)
    queues = tuple(parts["queues"].split("|")) if parts and parts["queues"] else ()
    if parts is None or parts["role"] not in set(Role) or not all(map(is_glob, queues)):
        raise ValueError(
            "has an entry that is not name:look:hash or name:operate:hash; make one with `tarry token new`"
        )
    return Token(parts["name"], Role(parts["role"]), parts["digest"], queues)


def is_glob(text: str) -> bool:
    """Whether an entry can contain it."""
    return _GLOB.fullmatch(text) is not None


def find(tokens: Sequence[Token], given: str) -> Token | None:
    """The entry of this token, or None. Compares all entries in constant time, so that timing reveals nothing."""
    digest = _digest(given)
    found = None
    for token in tokens:
        if hmac.compare_digest(token.digest, digest):
            found = token
    return found


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
