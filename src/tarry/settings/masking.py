"""Masks secrets in settings for display: passwords in any part of an address, and tokens."""

from __future__ import annotations

import re
from typing import Any, get_args

from pydantic import SecretStr

from tarry.settings.model import Settings

HIDDEN = "***"
_IN_QUERY = re.compile(r"(?i)([?&][^=&]*(?:password|secret|token)[^=&]*=)[^&]*")
_HASH = re.compile(r"\b[0-9a-f]{64}\b")
_IN_CONNINFO = re.compile(r"(?i)(\b\w*password\s*=\s*)(?:'(?:[^'\\]|\\.)*'|\S+)")


def is_secret(field: str) -> bool:
    info = Settings.model_fields.get(field)
    return info is not None and SecretStr in (info.annotation, *get_args(info.annotation))


def shown(value: Any) -> str | int | None:
    """A setting's value, safe to print."""
    if isinstance(value, SecretStr):
        return mask(value.get_secret_value())
    return value if value is None or isinstance(value, int) else str(value)


def mask(address: str) -> str:
    """A URL, a `key=value` connection string or a list of tokens, without its secrets.

    It hides too much rather than too little: a password with a slash is not valid in a URL, but must be hidden too.
    """
    scheme, slashes, rest = address.partition("://")
    if any("@" in found[0] for found in _IN_QUERY.finditer(rest)):
        return f"{scheme}://{HIDDEN}"
    if not slashes and "@" in address and "=" not in address:
        return HIDDEN
    if not slashes:
        return _IN_CONNINFO.sub(rf"\g<1>{HIDDEN}", _HASH.sub(HIDDEN, address))
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}://{user}{colon}{HIDDEN if colon else ''}{at}" + _IN_QUERY.sub(rf"\g<1>{HIDDEN}", place)
