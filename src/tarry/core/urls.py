"""Strict parser for URLs with credentials.

Parts of a password that was not percent-encoded look like a host, a port or a path, so no error quotes any of the URL.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import NamedTuple
from urllib.parse import unquote

ENCODE = "percent-encode the password: %23 for #, %2F for /, %3F for ?, %40 for @, %25 for %"
LAST_PORT = 65_535

_read = re.compile(
    r"(?P<scheme>[a-zA-Z][\w+.-]*)://"
    r"(?:(?P<login>[^/?#@\x00-\x1f\x7f]*)@)?"
    r"(?P<place>[^/?#@\s]+)"
    r"(?P<path>/[^?#@]*)?"
    r"(?:\?(?P<query>[^#@]*))?",
    re.ASCII,
).fullmatch
_read_place = re.compile(r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>\d{1,5})?)?", re.ASCII).fullmatch
_has_stray_percent = re.compile(r"%(?![0-9a-fA-F]{2})").search


class BadUrlError(ValueError):
    """The URL cannot be parsed. The message quotes nothing of it, and is worded as the end of a sentence."""


class Url(NamedTuple):
    """A parsed URL. User and password are percent-decoded; path and query are not."""

    scheme: str
    user: str | None
    password: str | None
    host: str
    port: int | None
    path: str
    query: str

    @property
    def place(self) -> str:
        """The URL without credentials and query, for display."""
        port = "" if self.port is None else f":{self.port}"
        return f"{self.scheme}://{bracketed(self.host)}{port}{self.path}"


def split_url(text: str) -> Url:
    """Parse a URL; raises a BadUrlError that says what to correct."""
    found = _read(text)
    if found is None:
        raise BadUrlError(ENCODE if _may_hold_password(text) else "it is not a URL")
    login = found["login"]
    if login is not None and _has_stray_percent(login):
        raise BadUrlError(ENCODE)
    user, colon, password = (login or "").partition(":")
    host, port = _host_and_port(found["place"])
    return Url(
        scheme=found["scheme"].lower(),
        user=None if login is None else unquote(user),
        password=unquote(password) if colon else None,
        host=host,
        port=port,
        path=found["path"] or "",
        query=found["query"] or "",
    )


def hides_password(text: str) -> bool:
    """Whether part of a password may be where the host, the path or the query is expected."""
    rest = text.partition("://")[2]
    return "@" in rest and (rest.count("@") > 1 or "@" not in rest.partition("/")[0])


def bracketed(host: str) -> str:
    """The host as written in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def _may_hold_password(text: str) -> bool:
    return "://" in text and ("@" in text or "#" in text)


def _host_and_port(place: str) -> tuple[str, int | None]:
    found = _read_place(place)
    port = int(found["port"]) if found is not None and found["port"] else None
    if found is None or (port is not None and port > LAST_PORT) or not _is_v6(found["v6"]):
        raise BadUrlError("its host or port cannot be read")
    return (found["v6"] or found["name"]).lower(), port


def _is_v6(text: str | None) -> bool:
    try:
        return text is None or bool(IPv6Address(text))
    except ValueError:
        return False
