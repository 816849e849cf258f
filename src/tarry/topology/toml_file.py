"""Reads TOML from untrusted paths (a directory, a pipe, a huge file, text made to keep the parser busy for hours), and
writes values as TOML.
"""

from __future__ import annotations

import json
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
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


_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_value(value: object) -> str:
    """A value as TOML, on one line. TOML has no null: what is None is left out of tables."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"{value:g}" if isinstance(value, float) and value.is_integer() else repr(value)
        case str():
            return _toml_text(value)
        case Mapping():
            parts = [f"{_toml_key(key)} = {toml_value(of)}" for key, of in value.items() if of is not None]
            return f"{{ {', '.join(parts)} }}" if parts else "{}"
        case Sequence():
            return f"[{', '.join(map(toml_value, value))}]"
        case _:
            raise TypeError(f"{value!r} has no form in TOML")


def _toml_key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) else _toml_text(key)


def _toml_text(text: str) -> str:
    """JSON's escapes are valid in TOML, except that TOML also wants DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
