"""Reads TOML from untrusted paths: a directory, a pipe, a huge file, text made to keep the parser busy for hours."""

from __future__ import annotations

import re
import stat
import tomllib
from pathlib import Path
from typing import Any

LARGEST = 256 << 10
"""In bytes; the shipped files have a few hundred."""

MOST_PARTS = 32
"""The maximum number of parts of a dotted key. Parsing time grows with the square of it: forty thousand bytes of
`a.a.a…` take half a minute."""

_WORD = r"[^\s.=,\[\]{}]"
_TOO_MANY_PARTS = re.compile(rf"(?<!{_WORD})(?:{_WORD}++[ \t]*+\.[ \t]*+){{{MOST_PARTS}}}")


class BadFileError(ValueError):
    """Says in one line what is wrong with the file, without its name."""


def read_toml(path: Path) -> dict[str, Any]:
    """The content of the file; raises BadFileError."""
    return parse_toml(read_text(path))


def read_text(path: Path) -> str:
    """The text of the file; raises BadFileError."""
    try:
        return _text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise BadFileError(f"cannot be read: {_short(error)}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """The parsed text; raises BadFileError."""
    if found := _TOO_MANY_PARTS.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise BadFileError(f"line {line}: more than {MOST_PARTS} words with dots between them")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise BadFileError("not TOML that can be used: it is nested too deeply") from None
    except ValueError as error:  # also for valid grammar without a valid value, such as a number of 5,000 digits
        raise BadFileError(f"not TOML: {error}") from None


def _text(path: Path) -> str:
    """Opens only regular files: reading a pipe would block, and a device has no end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise BadFileError("cannot be read: it is not a file")
    with path.open("rb") as file:
        raw = file.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise BadFileError(f"cannot be read: it is larger than {LARGEST >> 10} KiB")
    return raw.decode("utf-8")


def _short(error: OSError | UnicodeDecodeError) -> str:
    return f"{error.strerror}" if isinstance(error, OSError) else f"not UTF-8 text, at byte {error.start}"
