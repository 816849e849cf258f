"""Reading the few headers that belong to the contract; a wrong type is a reason to refuse, never a crash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tarry.contract import headers as h
from tarry.contract.fields import Field

LONGEST_TEXT = 4_096
"""Characters of a text header that are kept."""

FAR_FUTURE_MS = 2**53
"""Past any date; larger numbers are mistakes."""

SURELY_SECONDS = 100_000_000_000
"""As milliseconds this is a day in 1973; whoever gives a smaller moment has counted seconds."""


STRICT = "strict"
"""How bytes that are no UTF-8 are read, as `bytes.decode` names it: they are refused."""


class RefusalError(Exception):
    """Why a delivery cannot be understood; its text becomes the `review_reason`."""


def sane(name: str, value: int, most: int) -> int:
    """A count in 0…most."""
    if not 0 <= value <= most:
        raise RefusalError(f"`{name}` is {value}: it must be from 0 to {most}")
    return value


def sane_moment(name: str, value: int | None) -> int | None:
    """Milliseconds since 1970; 0 is how some clients say that there is none."""
    if not value:
        return None
    if 0 < value < SURELY_SECONDS:
        raise RefusalError(f"`{name}` is {value}: it counts milliseconds since 1970, and this looks like seconds")
    return sane(name, value, FAR_FUTURE_MS)


class HeaderReader:
    """The headers of one delivery, by name."""

    decoding: ClassVar[str] = STRICT

    def __init__(self, fields: Mapping[bytes, Field]) -> None:
        self.fields = fields

    def has(self, name: str) -> bool:
        return name.encode() in self.fields

    def states(self, name: str) -> bool:
        """Whether the header is there and not empty."""
        field = self.fields.get(name.encode())
        return field is not None and field.kind != b"V" and bool(field.value)

    def text(self, name: str) -> str | None:
        """Text, or None where the header is not there."""
        field = self.fields.get(name.encode())
        if field is None or field.kind == b"V":
            return None
        text = field.text()
        if text is None:
            raise RefusalError(f"the header `{name}` must be UTF-8 text")
        if len(text) > LONGEST_TEXT:
            return text[: LONGEST_TEXT - 1] + "…"
        return text

    def word(self, name: str) -> str | None:
        """Text or an integer, as text: some write a priority as a number."""
        field = self.fields.get(name.encode())
        if field is None:
            return None
        number = field.integer() if field.text() is None else None
        return str(number) if number is not None else self.text(name)

    def count(self, name: str, most: int = FAR_FUTURE_MS) -> int | None:
        """An integer in 0…most, or None where the header is not there."""
        number = self._integer(name)
        return None if number is None else sane(name, number, most)

    def moment(self, name: str = h.NEXT_RETRY_AT) -> int | None:
        """Milliseconds since 1970."""
        return sane_moment(name, self._integer(name))

    def _integer(self, name: str) -> int | None:
        field = self.fields.get(name.encode())
        if field is None or field.kind == b"V":
            return None
        number = field.integer()
        if number is None:
            raise RefusalError(f"the header `{name}` must be a whole number")
        return number


class LenientReader(HeaderReader):
    """Text of a wrong type counts as absent."""

    decoding: ClassVar[str] = "replace"

    def text(self, name: str) -> str | None:
        try:
            return super().text(name)
        except RefusalError:
            return None
