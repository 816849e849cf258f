"""The documentation as a site; `make check` builds it strictly, which finds dead links, anchors and orphans."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tarry.core.states import State
from tarry.generate import files

ROOT = Path(__file__).parents[2]
GENERATED = {ROOT / "docs" / "cli.md"}
PAGES = sorted(
    {ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"}
    | {*ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")} - GENERATED
)
LONGEST_README = 100
"""Lines: a screen and a half of text, and the pictures."""
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


def class_of(text: str) -> str:
    """The class `Retried` in a program, without its docstring."""
    (found,) = [one for one in ast.parse(text).body if isinstance(one, ast.ClassDef) and one.name == "Retried"]
    found.body = [one for one in found.body if not isinstance(one, ast.Expr)]
    return ast.unparse(found)


def test_the_guide_for_celery_has_the_class_of_the_example_that_is_run() -> None:
    guide = (ROOT / "docs" / "migrate.md").read_text(encoding="utf-8").partition("## From Celery retries")[2]
    block = re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)[0]
    assert class_of(block) == class_of((ROOT / "examples" / "celery" / "worker.py").read_text(encoding="utf-8"))


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


def test_site_of_a_dead_link_a_missing_anchor_and_an_orphan_is_refused(tmp_path: Path) -> None:
    """The build that `make check` makes, of the same pages with three mistakes."""
    docs = tmp_path / "docs"
    shutil.copytree(ROOT / "docs", docs)
    (docs / "orphan.md").write_text("# Nobody links to me\n", encoding="utf-8")
    with (docs / "start.md").open("a", encoding="utf-8") as page:
        page.write("\n[dead](no-such-page.md), [missing](migrate.md#no-such-guide)\n")
    config = (
        f"INHERIT: {ROOT}/mkdocs.yml\ndocs_dir: {docs}\nsite_dir: {tmp_path}/site\nhooks: [{ROOT}/.ci/docs_site.py]\n"
    )
    (tmp_path / "mkdocs.yml").write_text(config, encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", tmp_path / "mkdocs.yml"]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
    assert built.returncode == 1
    warnings = [line for line in built.stderr.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 3, built.stderr
    for part in ("orphan.md", "'no-such-page.md'", "'migrate.md#no-such-guide'"):
        assert any(part in line for line in built.stderr.splitlines()), built.stderr


def test_site_has_the_sections_and_the_generated_references() -> None:
    site = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)  # noqa: S506  a safe loader
    sections = {name: pages for one in site["nav"] for name, pages in one.items()}
    assert list(sections) == ["Start", "Concepts", "How-to", "Operations", "Reference", "Explanation"]
    generated = {str(path.relative_to(ROOT / "docs")) for path, _ in files() if path.suffix == ".md"}
    assert generated <= {page for one in sections["Reference"] for page in one.values()}


def test_the_site_needs_no_network() -> None:
    site = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)  # noqa: S506  a safe loader
    assert site["theme"]["font"] is False
    assert not {"extra_css", "extra_javascript", "extra"} & set(site)
    assert "mermaid" not in json.dumps(site["markdown_extensions"]), "drawing it takes a program from elsewhere"
