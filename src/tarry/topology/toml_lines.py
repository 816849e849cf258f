"""Finds the lines of keys and list entries in a TOML file, so that an error can name the line of a wrong value; and the
places of values, so that one can be replaced without a change to the rest of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Path = tuple[int | str, ...]

_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+"{3,5}'  # the longer strings first
    r"|'''(?:[^']|'(?!''))*+'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*+"'
    r"|'[^'\n]*+'"
    r"|\#[^\n]*+"
    r"|[\n\[\]{}=,.]"
    r"|[^\s\[\]{}=,.\"'#]++",
    re.DOTALL,
)


class Found(NamedTuple):
    """The place of a value, as far as the file has it."""

    line: int | None
    """None if the file has no part of it."""
    path: Path
    """As the file has it: without the position in a list where the file has a single table in place of the list."""


@dataclass(frozen=True, slots=True)
class Lines:
    """The line of each key and each list entry."""

    lines: Mapping[Path, int]

    def find(self, path: Sequence[int | str]) -> Found:
        """The line of the value. If the file does not have it, of the innermost table that it belongs to."""
        known: Path = ()
        shown: Path = ()
        for key in path:
            if (*known, key) in self.lines:
                known, shown = (*known, key), (*shown, key)
            elif not isinstance(key, int):
                shown = (*shown, key)
        return Found(self.lines.get(known), shown)


class LineSpan(NamedTuple):
    """Where a value is in the text."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Spans:
    """The place of each value, and of each table."""

    values: Mapping[Path, LineSpan]
    tables: Mapping[Path, LineSpan]
    """From the header to the end of the last key that stands in the table itself, not in a table within."""


def find_spans(text: str) -> Spans:
    """Reads text that is valid TOML; of any other text the places may be wrong."""
    reader = _Reader(list(_tokens(text)))
    try:
        reader.read()
    except (IndexError, RecursionError):
        return Spans({}, {})
    return Spans(reader.values, reader.spans)


def find_lines(text: str) -> Lines:
    """Reads text that is valid TOML; of any other text the lines may be wrong."""
    reader = _Reader(list(_tokens(text)))
    try:
        reader.read()
    except (IndexError, RecursionError):
        return Lines({})
    return Lines(reader.lines)


class _Token(NamedTuple):
    text: str
    line: int
    start: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def _tokens(text: str) -> Iterator[_Token]:
    line, counted = 1, 0
    for found in _TOKEN.finditer(text):
        line += text.count("\n", counted, found.start())
        counted = found.start()
        if not found[0].startswith("#"):
            yield _Token(found[0], line, found.start())
    yield _Token("\n", line, len(text))


@dataclass(slots=True)
class _Reader:
    tokens: list[_Token]
    lines: dict[Path, int] = field(default_factory=dict)
    values: dict[Path, LineSpan] = field(default_factory=dict)
    spans: dict[Path, LineSpan] = field(default_factory=dict)
    _at: int = 0
    _tables: dict[Path, int] = field(default_factory=dict)
    """For each list of tables, the position of the last one."""

    def read(self) -> None:
        table: Path = ()
        while self._at < len(self.tokens):
            if self._next() == "\n":
                self._at += 1
            elif self._next() == "[":
                table = self._header()
            else:
                self._pair(table)
                if table in self.spans:
                    self.spans[table] = LineSpan(self.spans[table].start, self._last_end())

    def _last_end(self) -> int:
        return self.tokens[self._at - 1].end

    def _next(self) -> str:
        return self.tokens[self._at].text

    def _header(self) -> Path:
        """`[names]` or `[[policy]]`: the path of the table that follows."""
        line, start = self.tokens[self._at].line, self.tokens[self._at].start
        many = self.tokens[self._at + 1].text == "["
        self._at += 2 if many else 1
        path: Path = ()
        *outer, last = self._key()
        for part in outer:
            path = self._last_table((*path, part))
        path = (*path, last)
        self._at += 2 if many else 1
        if many:
            self._tables[path] = self._tables.get(path, -1) + 1
            self.lines.setdefault(path, line)
        path = self._last_table(path)
        self.lines[path] = line
        self.spans[path] = LineSpan(start, self._last_end())
        return path

    def _last_table(self, path: Path) -> Path:
        return (*path, self._tables[path]) if path in self._tables else path

    def _key(self) -> list[str]:
        parts = [self._word()]
        while self._next() == ".":
            self._at += 1
            parts.append(self._word())
        return parts

    def _word(self) -> str:
        word = self._next()
        self._at += 1
        return word[1:-1] if word[0] in "\"'" else word

    def _pair(self, table: Path) -> None:
        """`key = value`, in a table or an inline table."""
        line, path = self.tokens[self._at].line, table
        for part in self._key():
            path = (*path, part)
            self.lines.setdefault(path, line)
        self._at += 1
        self._value(path)

    def _value(self, path: Path) -> None:
        start = self.tokens[self._at].start
        if self._next() == "[":
            self._list(path)
        elif self._next() == "{":
            self._inline_table(path)
        else:
            while self._next() not in ",]}\n":
                self._at += 1
        self.values[path] = LineSpan(start, self._last_end())

    def _list(self, path: Path) -> None:
        self._at += 1
        place = 0
        while self._next() != "]":
            if self._next() in ",\n":
                self._at += 1
                continue
            self.lines[(*path, place)] = self.tokens[self._at].line
            self._value((*path, place))
            place += 1
        self._at += 1

    def _inline_table(self, path: Path) -> None:
        self._at += 1
        while self._next() != "}":
            if self._next() in ",\n":
                self._at += 1
                continue
            self._pair(path)
        self._at += 1
