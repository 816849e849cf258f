"""Reading the few headers that belong to the contract; a wrong type is a reason to refuse, never a crash."""

from __future__ import annotations

from tarry.contract.fields import Field

LONGEST_TEXT = 4_096
"""Characters of a text header that are kept."""

FAR_FUTURE_MS = 2**53
"""Past any date; larger numbers are mistakes."""


class RefusalError(Exception):
    """Why a delivery cannot be understood; its text becomes the `review_reason`."""


def sane(name: str, value: int, most: int) -> int:
    """A count in 0…most."""
    if not 0 <= value <= most:
        raise RefusalError(f"`{name}` is {value}: it must be from 0 to {most}")
    return value


class HeaderReader:
    """The headers of one delivery, by name."""

    def __init__(self, fields: dict[bytes, Field]) -> None:
        self.fields = fields

    def has(self, name: str) -> bool:
        return name.encode() in self.fields

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
        number = None if field is None or field.text() is not None else field.integer()
        return str(number) if number is not None else self.text(name)

    def count(self, name: str, most: int = FAR_FUTURE_MS) -> int | None:
        """An integer in 0…most, or None where the header is not there."""
        field = self.fields.get(name.encode())
        if field is None or field.kind == b"V":
            return None
        number = field.integer()
        if number is None:
            raise RefusalError(f"the header `{name}` must be a whole number")
        return sane(name, number, most)
