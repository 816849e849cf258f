"""Makes text from outside safe to show: nothing in it acts on a terminal or a page, or hides what it says."""

from __future__ import annotations

_KEPT = "\n\t"


def printable(text: str, *, lines: bool = False) -> str:
    """The text with everything escaped that is not shown as itself: control characters, changes of direction, unusual
    spaces. `lines` keeps line ends and tabs.
    """
    kept = _KEPT if lines else ""
    return "".join(one if one in kept or one.isprintable() else _escaped(one) for one in text)


def _escaped(one: str) -> str:
    number = ord(one)
    if number < 0x100:  # noqa: PLR2004 - one byte
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"  # noqa: PLR2004 - as Python writes them
