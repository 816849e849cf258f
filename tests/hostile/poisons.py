"""Policy files that somebody made to do harm, or that an accident left behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

POLICY = '[[policy]]\nname = "{name}"\nschedule = ["1s"]\nmax_retries = 1\n'


@dataclass(frozen=True)
class Poison:
    """The content of a bad policy file, and words that the error line must contain."""

    name: str
    make: Callable[[Path], object]
    said: tuple[str, ...]


def text(name: str, content: str, *said: str) -> Poison:
    return Poison(name, lambda path: path.write_text(content, "utf-8"), said)


def policy(name: str, keys: str, *said: str) -> Poison:
    """One that is TOML, and no policy."""
    return text(name, f'[[policy]]\nname = "p"\n{keys}\n', "policy p", *said)


def _loop(path: Path) -> None:
    path.symlink_to(path)


POISONS = (
    Poison("a directory", Path.mkdir, ("it is not a file",)),
    Poison("a link to itself", _loop, ("cannot be read", "symbolic links")),
    Poison("a link to nowhere", lambda path: path.symlink_to("/nowhere/at/all"), ("No such file",)),
    Poison("a pipe that nobody writes to", os.mkfifo, ("it is not a file",)),
    Poison("a device without an end", lambda path: path.symlink_to("/dev/zero"), ("it is not a file",)),
    Poison(
        "a file that fails when it is read", lambda path: path.symlink_to("/proc/self/mem"), ("Input/output error",)
    ),
    Poison("bytes that are no text", lambda path: path.write_bytes(b"name = '\xff'"), ("not UTF-8 text, at byte 8",)),
    Poison("a NUL", lambda path: path.write_bytes(b"a = '\x00'"), ("not TOML",)),
    text("a huge file", "#" * 300_000, "larger than 256 KiB"),
    text("arrays in each other", "a = " + "[" * 100_000, "nested too deeply"),
    text("tables in each other", "a = " + "{a=" * 20_000, "nested too deeply"),
    text("a key of twenty thousand words", "a." * 20_000 + "b = 1", "line 1: more than 32 words"),
    text("a table name of as many", "\n[a" + ".a" * 20_000 + "]", "line 2: more than 32 words"),
    text("a number of 5,000 digits", "a = " + "9" * 5_000, "not TOML", "4300 digits"),
    text("twenty thousand policies without a name", "[[policy]]\n" * 20_000, "is missing", "and 39,950 more errors"),
    text("one table in place of a list", "[policy]\nname = 'x'", "write [[policy]], with two brackets"),
    text("a list of numbers", "policy = [1, 2]", "write [[policy]], with two brackets"),
    text("keys of the main file", "time_scale = 1.0", "time_scale: has no place here"),
    policy(
        "a schedule of numbers", "schedule = [1, 2]\nmax_retries = 1", "schedule, entry 1: `1`: use ms, s, m, h or d"
    ),
    policy("a wait of ages", "schedule = ['99999999999d']\nmax_retries = 1", "longer than a hundred years"),
    policy("digits without an end", f"schedule = ['{'9' * 9_000}d']\nmax_retries = 1", "use ms, s, m, h or d"),
    policy("a limit of age past all time", "schedule = ['1s']\nmax_age = '9999999d'\nmax_retries = 1", "max_age"),
    policy("digits of another script", "schedule = ['٣s']\nmax_retries = 1", "use ms, s, m, h or d"),
    policy("a million retries", "schedule = ['1s']\nmax_retries = 1000000", "max_retries: `1000000`", "1000"),
    policy("less than no retries", "schedule = ['1s']\nmax_retries = -1", "max_retries: `-1`"),
    policy(
        "a factor that is no number", "max_retries = 1\nbackoff = {base='1s', cap='2s', factor=nan}", "factor: `nan`"
    ),
    policy("a factor without an end", "max_retries = 1\nbackoff = {base='1s', cap='2s', factor=inf}", "factor: `inf`"),
    policy("a jitter that is no number", "schedule = ['1s']\nmax_retries = 1\njitter = 'nan%'", "jitter: `nan%`"),
    policy("a match of a wrong type", "schedule = ['1s']\nmax_retries = 1\nmatch = 5", "match: `5`"),
    policy(
        "a pattern of a hundred thousand characters",
        f"schedule = ['1s']\nmax_retries = 1\nmatch = {{queue = '{'*a' * 50_000}'}}",
        "match, queue",
        "at most 500 characters",
    ),
    text(
        "a name that writes to the terminal",
        '[[policy]]\nname = "\\u001b[2J\\nerror: all is well"\nschedule = ["1s"]\nmax_retries = 1',
        "use small letters",
    ),
)
