"""Tokens of the HTTP API: the settings hold their hashes, only the caller has the token itself."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

_MARK = "tarry_"
"""How every token begins, so that one that leaked into a log or a repository can be found."""

_ENTRY = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,63}):(?P<role>[a-z]+):(?P<digest>[0-9a-f]{64})", re.ASCII)


class Role(StrEnum):
    """What a token is good for."""

    LOOK = "look"
    """Read everything but payloads; change nothing."""
    OPERATE = "operate"
    """Read payloads too, and act."""


@dataclass(frozen=True, slots=True)
class Token:
    """One entry of API_TOKENS."""

    name: str
    role: Role
    digest: str
    """SHA-256 of the token. It is long and random, so there is nothing that salt or a slow hash would add."""

    def __str__(self) -> str:
        return f"{self.name}:{self.role}:{self.digest}"


def new_token(name: str, role: Role) -> tuple[str, Token]:
    """A token, to be shown once, and the entry that stands for it."""
    made = _MARK + secrets.token_urlsafe(32)
    return made, parse_entry(f"{name}:{role}:{_digest(made)}")


def parse_tokens(text: str) -> tuple[Token, ...]:
    """Entries with commas, blanks or line breaks between them. No message here repeats what it was given."""
    found = tuple(parse_entry(entry) for entry in re.split(r"[,\s]+", text) if entry)
    names = [token.name for token in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"has {', '.join(sorted(twice))} twice: each token needs a name of its own")
    return found


def parse_entry(entry: str) -> Token:
    """`name:role:hash`."""
    parts = _ENTRY.fullmatch(entry)
    if parts is None or parts["role"] not in set(Role):
        raise ValueError(
            "has an entry that is not name:look:hash or name:operate:hash; make one with `tarry token new`"
        )
    return Token(parts["name"], Role(parts["role"]), parts["digest"])


def find(tokens: Sequence[Token], given: str) -> Token | None:
    """The one that this is the token of. Every entry is compared, in constant time: how long it takes tells nothing."""
    digest = _digest(given)
    found = None
    for token in tokens:
        if hmac.compare_digest(token.digest, digest):
            found = token
    return found


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
