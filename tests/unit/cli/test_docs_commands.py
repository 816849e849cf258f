"""Each command that a page quotes is parsed against the real command line: the command and every option must exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from tarry.cli.main import app

ROOT = Path(__file__).parents[3]
GENERATED = ROOT / "docs" / "cli.md"
PAGES = sorted(
    {ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")}
    - {GENERATED}
)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELLS = {"console", "sh", "bash", "shell", ""}
BREAKS = {"|", "||", "&&", ";", "&", ">", ">>", "<", "$"}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@cache
def whole() -> Any:
    """All commands; made once, as it takes a while."""
    return get_command(app)


def words(line: str) -> list[str]:
    """As a shell splits them; what stands for a value in the docs (<id>, [--option]) is a word like any other."""
    plain = re.sub(r"<[^<>]*>", "VALUE", line).replace("[", "").replace("]", "")
    lexer = shlex.shlex(plain, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    return list(lexer)


def commands(line: str) -> Iterator[list[str]]:
    """Those of one line: `A=b tarry status | head` has one."""
    command: list[str] = []
    for word in [*words(line), ";"]:
        if word not in BREAKS:
            command.append(word)
            continue
        while command and re.match(r"[A-Za-z_]+=", command[0]):
            command.pop(0)
        if command and Path(command[0]).name in {"tarry", "make"}:
            yield [Path(command[0]).name, *command[1:]]
        command = []


def in_blocks(text: str) -> Iterator[str]:
    """Lines that a reader would type: behind a `$` in a console block, every line of a script."""
    for kind, block in FENCED.findall(text):
        if kind in SHELLS:
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("$ ") or (kind not in {"console", ""} and line):
                    yield line.removeprefix("$ ")


def inline(text: str) -> Iterator[str]:
    for span in re.findall(r"`((?:tarry|make) [a-z][^`]*)`", FENCED.sub("", text)):
        yield " ".join(span.split())


def quoted() -> list[Any]:
    """Each command once, with the first page that has it."""
    found: dict[tuple[str, ...], str] = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for line in (*in_blocks(text), *inline(text)):
            for command in commands(line):
                found.setdefault(tuple(command), str(page.relative_to(ROOT)))
    return [pytest.param(list(one), id=f"{page}: {' '.join(one)}") for one, page in sorted(found.items())]


def parse(command: list[str]) -> None:
    program, *arguments = command
    if program == "make":
        assert {one for one in arguments if "=" not in one} <= TARGETS
        return
    current = whole()
    context = typer.Context(current, info_name="tarry")
    while hasattr(current, "get_command") and arguments and not arguments[0].startswith("-"):
        found = current.get_command(context, arguments[0])
        assert found is not None, f"there is no `{arguments[0]}` in `{' '.join(command)}`"
        current, arguments = found, arguments[1:]
        context = typer.Context(current, info_name=current.name, parent=context)
    if arguments:
        current.make_context(str(current.name), arguments)


@pytest.mark.parametrize("command", quoted())
def test_docs_command_exists_with_its_options(command: list[str]) -> None:
    parse(command)


def test_docs_commands_are_found_in_blocks_and_sentences() -> None:
    found = {one.id for one in quoted()}
    for expected in ("tarry topology plan", "tarry attach orders --dry-run", "tarry review groups", "make chaos"):
        assert any(one.endswith(f": {expected}") for one in found), expected
