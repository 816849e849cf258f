"""Every command in the pages for operators is one that there is, every metric one that is counted."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from tarry.cli.main import app
from tarry.router.metrics import Metrics

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("operations.md", "api.md")
RUNBOOK = (DOCS / "operations.md").read_text(encoding="utf-8")


@cache
def whole() -> Any:
    """All commands; made once, as it takes a while."""
    return get_command(app)


def commands(page: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    shown = re.findall(r"^\$ (?:[A-Z_]+=\S+ )*(tarry .*)$", text, re.MULTILINE)
    return shown + re.findall(r"`(tarry [a-z][^`]*)`", text)


@pytest.mark.parametrize("line", sorted({line for page in PAGES for line in commands(page)}))
def test_the_command_is_one_that_there_is(line: str) -> None:
    arguments = shlex.split(line.replace("<retry id>", "1d3c2b1a-0000-5000-8000-000000000000"), comments=True)[1:]
    command = whole()
    context = typer.Context(command, info_name="tarry")
    while hasattr(command, "get_command") and arguments:
        found = command.get_command(context, arguments[0])
        assert found is not None, f"there is no `{arguments[0]}` in: {line}"
        command, arguments = found, arguments[1:]
        context = typer.Context(command, info_name=command.name, parent=context)
    if arguments:
        command.make_context(str(command.name), arguments)


def test_every_symptom_says_what_to_run_and_when_it_is_over() -> None:
    sections = {part.partition("\n")[0]: part for part in RUNBOOK.split("\n## ")[1:]}
    sections.pop("Who did that?")
    assert len(sections) == 10
    for title, text in sections.items():
        for word in ("**You see**", "**Run**", "**It is over when**", "```console"):
            assert word in text, f"{title}: {word}"
        assert f"(#{title.lower().replace(' ', '-')})" in RUNBOOK.split("\n## ")[0], f"{title} is not in the table"


def test_every_metric_in_it_is_counted() -> None:
    counted = {sample.name for family in Metrics().registry.collect() for sample in family.samples}
    counted |= {family.name for family in Metrics().registry.collect()}
    counted |= {f"{name}{end}" for name in set(counted) for end in ("_total", "_bucket")}
    named = set(re.findall(r"\b((?:tarry|retries|retry)_[a-z_]+)\b(?!\.)", RUNBOOK)) - {"retry_id"}
    assert len(named) > 10
    assert named <= counted | {"tarry_open"}, named - counted
