"""The documentation as a site; `make check` builds it strictly, which finds dead links, anchors and orphans."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tarry.core.states import State

ROOT = Path(__file__).parents[2]
GENERATED = {ROOT / "docs" / "cli.md"}
PAGES = sorted(
    {ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"}
    | {*ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")} - GENERATED
)
LONGEST_README = 100
"""Lines: a screen and a half, as it is rendered."""
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)

RUN_ELSEWHERE = {
    "console": "commands, parsed by test_docs_commands; run by test_start_walkthrough and test_migrate_guides",
    "sh": "as console; those of api.md are run by test_docs_api_examples",
    "sql": "run by test_docs_sql, test_client_outcome_reports and test_migrate_guides",
    "java": "sent by test_docs_contract's counterpart in examples/",
    "js": "as java",
    "proto": "the contract, compiled by make generate",
    "mermaid": "generated: test_generated_files",
}
OUTPUT = {"text", "http", "ini", "yaml"}
"""What something prints, or the configuration of another program."""


def blocks() -> Iterator[Any]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in FENCE.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            indented = re.sub(rf"^{found[1]}", "", found[3], flags=re.MULTILINE)
            yield pytest.param(found[2].strip(), indented, id=f"{page.relative_to(ROOT)}:{line}")


def parse(kind: str, text: str) -> None:
    """Raises if a reader could not use the block as it stands."""
    if kind == "python":
        ast.parse(text)
    elif kind == "toml":
        tomllib.loads(text)
    elif kind == "json":
        json.loads(text.replace("…", ""))
    else:
        assert kind in RUN_ELSEWHERE or kind in OUTPUT, f"`{kind}`: name a language that is checked, or mark it `text`"


@pytest.mark.parametrize(("kind", "text"), list(blocks()))
def test_a_code_block_is_checked_or_marked_as_output(kind: str, text: str) -> None:
    parse(kind, text)


@pytest.mark.parametrize(("kind", "text"), [("", "x"), ("python", "def x(:"), ("toml", "a = "), ("json", "{")])
def test_a_wrong_code_block_is_found(kind: str, text: str) -> None:
    with pytest.raises((AssertionError, SyntaxError, ValueError)):
        parse(kind, text)


def test_the_page_on_concepts_has_every_state() -> None:
    table = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8").partition("## States")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(State)


def test_the_readme_is_short_and_shows_a_terminal_and_the_dashboard() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST_README
    pictures = re.findall(r"^!\[[^]]+\]\((docs/img/[^)]+)\)$", text, re.MULTILINE)
    assert pictures == ["docs/img/session.svg", "docs/img/dashboard-overview.png"]
    assert "lost 0" in (ROOT / pictures[0]).read_text(encoding="utf-8")


def test_the_picture_of_a_message_has_the_steps_of_the_readmes_diagram() -> None:
    diagram = (ROOT / "README.md").read_text(encoding="utf-8").partition("```mermaid\n")[2].partition("```")[0]
    picture = (ROOT / "docs" / "img" / "message.svg").read_text(encoding="utf-8")
    drawn = set(re.findall(r"<text[^>]*>([^<]+)</text>", picture))
    assert {"your worker", "retry.scheduled", "retry.delay.8s", "manual-review.pending", "retry.audit"} <= drawn
    assert all(name in diagram for name in drawn - {"waits 8 s", "expires", "rejects"})


class Loader(yaml.SafeLoader):  # type: ignore[misc]  # published without types
    """mkdocs.yml names Python objects, which only mkdocs makes."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def test_the_site_needs_no_network() -> None:
    site = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)  # noqa: S506  a safe loader
    assert site["theme"]["font"] is False
    assert not {"extra_css", "extra_javascript", "extra"} & set(site)
    assert "mermaid" not in json.dumps(site["markdown_extensions"]), "drawing it takes a program from elsewhere"
