"""What a person changes on a message before it is sent on: its body, and headers of the application's. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tarry.contract import headers as h
from tarry.contract.encoding import table
from tarry.contract.fields import cut
from tarry.contract.properties import Properties
from tarry.errors import SettingsError

_RESERVED = frozenset({h.REVIEW_REASON, *h.BROKERS_OWN})
_RESERVED_PREFIXES = (h.OURS, *h.BROKERS_OWN_PREFIXES)


@dataclass(frozen=True, slots=True)
class Edits:
    """Nothing, unless somebody says so."""

    headers: Mapping[str, Any] = field(default_factory=dict)
    """Set to these values, whatever they were."""
    dropped: tuple[str, ...] = ()
    """Headers that go."""
    body: bytes | None = None
    """The new payload; None leaves it as it is."""

    def __bool__(self) -> bool:
        return bool(self.headers or self.dropped or self.body is not None)

    def summary(self) -> dict[str, Any]:
        """What was changed, for the history."""
        said: dict[str, Any] = {"headers": dict(self.headers), "dropped": list(self.dropped)}
        return {name: value for name, value in said.items() if value} | (
            {"body_size": len(self.body)} if self.body is not None else {}
        )


def edits_from(set_headers: Sequence[str] = (), drop_headers: Sequence[str] = (), body: bytes | None = None) -> Edits:
    """From what was typed: `name=text`, or `name:=json` for a number, a flag or a list."""
    return checked(Edits(dict(map(_assignment, set_headers)), tuple(drop_headers), body))


def checked(edits: Edits) -> Edits:
    """The same edits, or an error that names the header that is not theirs to change."""
    for name in (*edits.headers, *edits.dropped):
        if not name or name in _RESERVED or name.startswith(_RESERVED_PREFIXES):
            raise SettingsError(
                f"The header {name!r} belongs to tarry or the broker and cannot be edited: use --fresh, --to or "
                "--delay for what tarry's own headers say."
            )
    if "\x00" in "".join(_texts([edits.headers, edits.dropped])):
        raise SettingsError("The headers cannot be set: a NUL stands in one of them.")
    try:
        table(edits.headers)
    except (ValueError, UnicodeEncodeError) as error:
        raise SettingsError(f"The headers cannot be set: {error}") from None
    return edits


def _texts(value: Any) -> Iterator[str]:
    """Every name and every text in it, however deep."""
    match value:
        case str():
            yield value
        case Mapping():
            yield from _texts([*value, *value.values()])
        case list() | tuple():
            for one in value:
                yield from _texts(one)


def _assignment(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise SettingsError(f"`{text}`: write a header as name=text, or name:=value for JSON such as 5 or true")
    if not name.endswith(":"):
        return name, value
    try:
        return name[:-1], json.loads(value)
    except ValueError:
        raise SettingsError(
            f"`{text}`: what follows := must be JSON, as in retries:=5; text is set with name=text"
        ) from None


def edited(properties: Properties, edits: Edits) -> Properties:
    """The other headers stay as they are, to the byte."""
    if not edits.headers and not edits.dropped:
        return properties
    gone = {name.encode() for name in (*edits.headers, *edits.dropped)}
    kept = cut(properties.headers or b"", gone.__contains__)
    return replace(properties, headers=kept + table(edits.headers))
