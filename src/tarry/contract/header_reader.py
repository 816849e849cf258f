"""Reads the headers that belong to the contract. A header of a wrong type raises RefusalError, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from tarry.amqp.field_tables import Field
from tarry.contract import headers as h

LONGEST_TEXT = 4_096
"""Most characters kept of a text header."""

LONGEST_OWNER = 255
"""Most characters of an owner. A longer one cannot be used: two that share a beginning are not the same."""

FAR_FUTURE_MS = 2**53
"""Beyond any real date; larger numbers are mistakes."""

SURELY_SECONDS = 100_000_000_000
"""As milliseconds this is a day in 1973; a smaller time was almost certainly given in seconds."""


VOID = b"V"
"""The type of a header without a value, which counts as absent."""

STRICT = "strict"
"""The error handler for `bytes.decode`: bytes that are not UTF-8 are refused."""


class RefusalError(Exception):
    """A delivery is not a valid request; the message becomes the `review_reason`."""


def sane(name: str, value: int, most: int) -> int:
    """Check that a count is in 0…most."""
    if not 0 <= value <= most:
        raise RefusalError(f"`{name}` is {value}: it must be from 0 to {most}")
    return value


def sane_moment(name: str, value: int | None) -> int | None:
    """Check a time in milliseconds since 1970; some clients write 0 for none."""
    if not value:
        return None
    if 0 < value < SURELY_SECONDS:
        raise RefusalError(f"`{name}` is {value}: it counts milliseconds since 1970, and this looks like seconds")
    return sane(name, value, FAR_FUTURE_MS)


def sane_owner(owner: str | None) -> str | None:
    """Check an owner; an empty one counts as absent."""
    if owner and (len(owner) > LONGEST_OWNER or "\x00" in owner):
        raise RefusalError(f"`{h.OWNER}` must have at most {LONGEST_OWNER} characters and no NUL: {owner[:40]!r}")
    return owner or None


def usable_owner(read: Callable[[], str | None]) -> str | None:
    """One that cannot be used counts as absent. Applications had headers of this name before it had a meaning, and a
    retry is worth more than its owner.
    """
    try:
        return sane_owner(read())
    except RefusalError:
        return None


def text_of(name: str, field: Field, longest: int | None = LONGEST_TEXT) -> str:
    """The value of a header as text of at most `longest` characters."""
    text = field.text()
    if text is None:
        raise RefusalError(f"the header `{name}` must be UTF-8 text")
    if longest is not None and len(text) > longest:
        return text[: longest - 1] + "…"
    return text


def integer_of(name: str, field: Field) -> int:
    number = field.integer()
    if number is None:
        raise RefusalError(f"the header `{name}` must be a whole number")
    return number


class HeaderReader:
    """The headers of one delivery, by name."""

    decoding: ClassVar[str] = STRICT

    def __init__(self, fields: Mapping[bytes, Field]) -> None:
        self.fields = fields

    def has(self, name: str) -> bool:
        return name.encode() in self.fields

    def states(self, name: str) -> bool:
        """Whether the header is present and not empty."""
        field = self.fields.get(name.encode())
        return field is not None and field.kind != VOID and bool(field.value)

    def text(self, name: str) -> str | None:
        """Text, or None if the header is absent."""
        field = self.fields.get(name.encode())
        return None if field is None or field.kind == VOID else text_of(name, field)

    def word(self, name: str) -> str | None:
        """Text or an integer, as text: some clients write a priority as a number."""
        field = self.fields.get(name.encode())
        if field is None:
            return None
        number = field.integer() if field.text() is None else None
        return str(number) if number is not None else self.text(name)

    def owner(self) -> str | None:
        """Text or an integer, as text; None if it is absent, empty or cannot be used."""
        return usable_owner(lambda: self.word(h.OWNER))

    def count(self, name: str, most: int = FAR_FUTURE_MS) -> int | None:
        """An integer in 0…most, or None if the header is absent."""
        number = self._integer(name)
        return None if number is None else sane(name, number, most)

    def moment(self, name: str = h.NEXT_RETRY_AT) -> int | None:
        """A time in milliseconds since 1970, or None if the header is absent or 0."""
        return sane_moment(name, self._integer(name))

    def _integer(self, name: str) -> int | None:
        field = self.fields.get(name.encode())
        return None if field is None or field.kind == VOID else integer_of(name, field)


class LenientReader(HeaderReader):
    """A header reader for which text of a wrong type counts as absent."""

    decoding: ClassVar[str] = "replace"

    def text(self, name: str) -> str | None:
        try:
            return super().text(name)
        except RefusalError:
            return None
