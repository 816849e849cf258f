from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tarry.topology.load import shipped
from tarry.topology.toml_lines import find_lines

ODD = """\
# [[policy]] in a comment is none
title = "a # in a string, and [[policy]]"
long = '''
[[policy]]
name = "none"'''
"quoted.key" = 1.5

[[policy]]
name = "one"
schedule = [
  "1s",  # the first
  "2s",
]
errors = [
  { type = "A", class = "final" },
  { type = "B, C] }", class = "retryable" },
]
match.queue = "dotted"

[policy.backoff]
base = "1s"

[[policy]]
name = \"\"\"two
lines\"\"\"
window = { only = "sat" }
last = 2030-01-31
"""


def every_path(value: Any, path: tuple[int | str, ...] = ()) -> Iterator[tuple[int | str, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*path, key)
        yield from every_path(inner, (*path, key))


@pytest.mark.parametrize("text", [ODD, *(file.read_text() for file in sorted(Path(shipped()).rglob("*.toml")))])
def test_toml_lines_knows_every_key_and_entry(text: str) -> None:
    found = find_lines(text).lines
    rows = text.splitlines()

    assert set(found) == set(every_path(tomllib.loads(text)))
    for path, line in found.items():
        if isinstance(path[-1], str):
            assert path[-1] in rows[line - 1]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("long",), 3),
        (("quoted.key",), 6),
        (("policy", 0), 8),
        (("policy", 0, "schedule", 1), 12),
        (("policy", 0, "errors", 1, "class"), 16),
        (("policy", 0, "match", "queue"), 18),
        (("policy", 0, "backoff", "base"), 21),
        (("policy", 1, "name"), 24),
        (("policy", 1, "last"), 27),
    ],
)
def test_toml_lines_of_odd_forms(path: tuple[int | str, ...], line: int) -> None:
    assert find_lines(ODD).find(path) == (line, path)


def test_toml_lines_of_what_is_missing_are_those_of_its_table() -> None:
    lines = find_lines(ODD)

    assert lines.find(("policy", 1, "max_retries")) == (23, ("policy", 1, "max_retries"))
    assert lines.find(("ladder", "radix")) == (None, ("ladder", "radix"))


def test_toml_lines_leave_out_the_position_of_a_single_table() -> None:
    assert find_lines(ODD).find(("policy", 1, "window", 0, "zone")) == (26, ("policy", 1, "window", "zone"))


@pytest.mark.parametrize("text", ["", "[", "a = [", "= 1", '"""', "[[policy"])
def test_toml_lines_of_other_text_do_no_harm(text: str) -> None:
    assert find_lines(text).find(("policy", 0, "name")).path[-1] == "name"
