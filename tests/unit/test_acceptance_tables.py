"""The tables in tests/acceptance/README.md: every link leads to a test, and every system has its table."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tarry.topology.load import load, shipped

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "tests" / "acceptance" / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"`([\w/.-]+\.py)::(\w+)`")
WORK = {
    "guards",
    "analytics",
    "speed and scale",
}
"""What can be pending: the page names the same."""


class Requirement(NamedTuple):
    """One row."""

    system: str
    text: str
    state: str

    @property
    def links(self) -> list[tuple[str, str]]:
        return LINK.findall(self.state)


def sections() -> dict[str, str]:
    """The part of the page about each system."""
    parts = re.split(r"(?m)^## (S\d): .*$", PAGE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(system: str, section: str) -> list[Requirement]:
    lines = [line for line in section.splitlines() if line.startswith("|")]
    assert lines[:2] == ["| requirement | state |", "|---|---|"], system
    return [Requirement(system, *(cell.strip() for cell in line.strip("|").split("|"))) for line in lines[2:]]


REQUIREMENTS = [row for system, section in sections().items() for row in rows(system, section)]


@cache
def functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def is_pending(row: Requirement) -> bool:
    return row.state.removeprefix("pending: ") in WORK and row.state.startswith("pending: ")


def is_linked(row: Requirement) -> bool:
    """Nothing but links, separated by commas."""
    return bool(row.links) and not LINK.sub("", row.state).strip(", ")


def test_acceptance_tables_have_every_system_of_the_shipped_topology() -> None:
    files = sorted((shipped() / "policies").glob("*.toml"))
    named = {system for path in files for system in re.findall(r"(?m)^# (S\d), ", path.read_text(encoding="utf-8"))}
    assert named == set(sections()) == {"S0", "S1", "S2", "S3", "S4"}
    assert {row.system for row in REQUIREMENTS} == named


def test_acceptance_tables_name_every_shipped_policy() -> None:
    named = [
        policy
        for section in sections().values()
        for line in re.findall(r"(?m)^Policies: (.*)\.$", section)
        for policy in re.findall(r"`([\w-]+)`", line)
    ]
    assert sorted(named) == sorted(policy.name for policy in load(shipped()).policies)


@pytest.mark.parametrize("row", REQUIREMENTS, ids=lambda row: f"{row.system}: {row.text}"[:70])
def test_acceptance_tables_link_to_tests_that_exist(row: Requirement) -> None:
    assert is_linked(row) != is_pending(row), row.state
    for path, name in row.links:
        assert (ROOT / path).is_file(), path
        assert name in functions(path), f"{path} has no {name}"


def test_acceptance_tables_have_no_requirement_twice() -> None:
    texts = [(row.system, row.text) for row in REQUIREMENTS]
    assert len(set(texts)) == len(texts)
