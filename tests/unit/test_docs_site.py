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
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
import yaml

from tarry.contract.outcome import read_report
from tarry.core.states import State
from tarry.events.schema import EventSchema
from tarry.generate import files
from tarry.settings.sources import NAMES
from tarry.topology.load import load
from tests.support.documentation import ELSEWHERE, PAGES, ROOT, Block, blocks, run_elsewhere, typed

LONGEST_README = 100
"""Lines: a screen and a half of text, and the pictures."""

RUN_BY: Mapping[tuple[str, str], tuple[int, str]] = {
    ("docs/clients.md", "python"): (8, "tests/integration/client/test_docs_clients.py"),
    ("docs/clients.md", "js"): (1, "tests/acceptance/test_examples.py"),
    ("docs/clients.md", "java"): (1, "tests/acceptance/test_examples.py"),
    ("docs/clients.md", "sql"): (1, "tests/acceptance/test_client_outcome_reports.py"),
    ("docs/contract.md", "python"): (3, "tests/acceptance/test_docs_contract_examples.py"),
    ("docs/contract.md", "js"): (3, "tests/acceptance/test_docs_contract_languages.py"),
    ("docs/contract.md", "java"): (3, "tests/acceptance/test_docs_contract_languages.py"),
    ("docs/contract.md", "proto"): (1, "tests/unit/contract/test_docs_contract.py"),
    ("docs/embedded.md", "python"): (1, "tests/integration/embedded/test_docs_embedded.py"),
    ("docs/migrate.md", "python"): (5, "tests/acceptance/test_migrate_guides.py"),
    ("docs/migrate.md", "sql"): (1, "tests/acceptance/test_migrate_guides.py"),
    ("docs/start.md", "python"): (3, "tests/acceptance/test_start_walkthrough.py"),
    ("docs/webhooks.md", "python"): (2, "tests/integration/events/test_docs_webhooks.py"),
    ("docs/audit.md", "sql"): (8, "tests/integration/store/test_docs_sql.py"),
    ("docs/api.md", "json"): (1, "tests/integration/web/test_docs_api_examples.py"),
    ("docs/events.md", "json"): (1, "tests/unit/test_docs_site.py"),
    ("docs/clients.md", "json"): (1, "tests/unit/test_docs_site.py"),
    ("docs/contract.md", "json"): (2, "tests/unit/test_docs_site.py"),
    ("README.md", "mermaid"): (1, "tests/unit/test_docs_site.py"),
    ("docs/topology.md", "mermaid"): (1, "tests/unit/topology/test_generated_files.py"),
    ("docs/settings.md", "toml"): (1, "tests/unit/test_docs_site.py"),
}
"""The blocks of a language on a page: how many, and the test that takes all of them from there."""

TYPED = {"console", "sh"}
"""Each line is run by test_docs_commands_run.py, or by what tests/support/documentation.py says."""
OUTPUT = {"text", "http", "ini", "yaml"}
"""What something prints, or the configuration of another program."""

BLOCKS = [block for page in PAGES for block in blocks(page)]


def unproven(found: Iterable[Block]) -> list[str]:
    """What nothing runs, and what to do about it."""
    rest = [one for one in found if one.kind not in TYPED | OUTPUT and not is_topology(one)]
    counted = Counter((one.name, one.kind) for one in rest)
    wrong = []
    for page, kind in sorted(counted.keys() | RUN_BY.keys()):
        run = RUN_BY.get((page, kind), (0, ""))[0]
        if counted[page, kind] != run:
            wrong.append(
                f"{page} has {counted[page, kind]} blocks of `{kind}`, and {run} are run: run it in a test, count it "
                "in RUN_BY, or mark it `text` if it is output"
            )
    return wrong


def is_topology(block: Block) -> bool:
    return block.kind == "toml" and block.name != "docs/settings.md"


def test_every_code_block_is_run_or_marked_as_output() -> None:
    assert unproven(BLOCKS) == []


@pytest.mark.parametrize(("kind", "before"), [("", 0), ("python", 5), ("json", 0), ("go", 0)])
def test_a_new_code_block_that_nothing_runs_is_found(kind: str, before: int) -> None:
    new = Block(ROOT / "docs" / "migrate.md", 1, kind, "x")
    (found,) = unproven([*BLOCKS, new])
    assert found.startswith(f"docs/migrate.md has {before + 1} blocks of `{kind}`, and {before} are run: ")


@pytest.mark.parametrize("where", sorted({path for _, path in RUN_BY.values()} | set(ELSEWHERE.values())))
def test_what_runs_the_blocks_exists(where: str) -> None:
    assert (ROOT / where).is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_line_that_is_typed_is_run(page: Path) -> None:
    ours = ("tarry ", "curl ")
    other = [line for line in typed(page) if not line.startswith(ours) and run_elsewhere(page, line) is None]
    assert other == [], "say in tests/support/documentation.py what runs it"


ONE_POLICY = '\n[[policy]]\nname = "one"\nschedule = ["1s"]\nmax_retries = 1\n'


@pytest.mark.parametrize(
    "block", [one for one in BLOCKS if is_topology(one)], ids=lambda block: f"{block.name}:{block.line}"
)
def test_topology_in_a_block_can_be_loaded(block: Block, tmp_path: Path) -> None:
    """Keys without a table are those of a policy."""
    whole = block.text if block.text.startswith("[") else ONE_POLICY + block.text
    if "[[policy]]" not in whole:
        whole += ONE_POLICY
    (tmp_path / "tarry.toml").write_text(whole, encoding="utf-8")
    assert load(tmp_path).policies


def test_settings_in_a_block_are_settings() -> None:
    (block,) = [one for one in BLOCKS if one.name == "docs/settings.md" and one.kind == "toml"]
    assert {name.upper() for name in tomllib.loads(block.text)} <= set(NAMES.values())


def test_reports_in_a_block_can_be_read() -> None:
    found = [one.text for one in BLOCKS if one.kind == "json" and '"outcomes"' in one.text]
    assert len(found) == 3
    for text in found:
        report = read_report(text.replace("<tarry-id>", "24e9476b-f4f5-5044-8227-4c112216f4bc").encode())
        assert len([*report.starts, *report.outcomes, *report.skips]) == len(json.loads(text)["outcomes"])


def test_the_event_in_a_block_follows_its_schema() -> None:
    (block,) = [one for one in BLOCKS if one.name == "docs/events.md" and one.kind == "json"]
    EventSchema.model_validate_json(block.text)


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
    pictures = re.findall(r"!\[[^]]+\]\((docs/img/[^)]+)\)", text)
    assert pictures == ["docs/img/session.svg", "docs/img/dashboard-overview.png", "docs/img/dashboard-review.png"]
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
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(tmp_path / "mkdocs.yml")]
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
