"""Text that came from outside, for a terminal: a payload must not be able to clear the screen, or hide what it says."""

from __future__ import annotations

import json

_KEPT = "\n\t"


def printable(text: str, *, lines: bool = False) -> str:
    """As it is, but what a terminal would act on or not show is escaped: control characters, turns of direction, odd
    spaces. `lines` keeps line ends and tabs.
    """
    kept = _KEPT if lines else ""
    return "".join(one if one in kept or one.isprintable() else _escaped(one) for one in text)


def shortened(text: str | None, most: int) -> str:
    """In one line, cut where it is too long."""
    found = printable(text or "")
    return found if len(found) <= most else found[: most - 1] + "…"


def _escaped(one: str) -> str:
    number = ord(one)
    if number < 0x100:  # noqa: PLR2004 - one byte
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"  # noqa: PLR2004 - as Python writes them


def printable_json(text: str) -> str:
    """JSON that says the same: what stands outside of its strings is printable, but for blanks and line ends."""
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(one if one in _KEPT or one.isprintable() else json.dumps(one)[1:-1] for one in text)


def payload_text(body: bytes) -> str | None:
    """The payload as text for a terminal; None if it is none."""
    try:
        return printable(body.decode(), lines=True)
    except UnicodeDecodeError:
        return None
