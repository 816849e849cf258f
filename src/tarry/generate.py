"""Writes the generated files of the repository: `make generate` writes them, `make check` fails if one is stale."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import typer

from tarry.events.reference import events_markdown
from tarry.events.schema import events_schema_text
from tarry.service.alerts import rules_text
from tarry.service.grafana import DASHBOARDS, dashboard_text
from tarry.service.reference import metrics_markdown
from tarry.settings.reference import settings_markdown
from tarry.topology.definitions import definitions_text
from tarry.topology.load import load
from tarry.topology.reference import topology_markdown
from tarry.topology.schema import schema_text
from tarry.web.api.reference import api_markdown

ROOT = Path(__file__).parents[2]
CONTRACT = ROOT / "src" / "tarry" / "contract"


def files() -> Iterator[tuple[Path, Callable[[], str]]]:
    """Every generated file, with the function that makes its text."""
    topology = load(ROOT / "topology")
    yield ROOT / "definitions.json", lambda: definitions_text(topology)
    yield ROOT / "topology" / "schema.json", schema_text
    yield ROOT / "docs" / "cli.md", command_reference
    yield ROOT / "docs" / "settings.md", settings_markdown
    yield ROOT / "docs" / "metrics.md", metrics_markdown
    yield ROOT / "docs" / "topology-reference.md", topology_markdown
    yield ROOT / "docs" / "events-reference.md", events_markdown
    yield ROOT / "docs" / "api-reference.md", api_markdown
    yield ROOT / "docs" / "events.schema.json", events_schema_text
    yield ROOT / "deploy" / "prometheus" / "tarry.rules.yml", rules_text
    for dashboard in DASHBOARDS:
        path = ROOT / "deploy" / "grafana" / "dashboards" / f"{dashboard.name}.json"
        yield path, partial(dashboard_text, dashboard.name)
    for name in ("retry_pb2.py", "retry_pb2.pyi"):
        yield CONTRACT / name, partial(contract_code, name)


def command_reference() -> str:
    """docs/cli.md, from the commands' own help."""
    from typer.cli import get_docs_for_click  # noqa: PLC0415 - only here, and it is slow to import

    from tarry.cli.main import app  # noqa: PLC0415 - the commands import nearly everything

    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="tarry"), name="tarry")
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE).strip() + "\n"


def contract_code(name: str) -> str:
    """One of the files that protoc generates from the contract."""
    from grpc_tools import protoc  # noqa: PLC0415 - a tool of developers, not of the service

    with tempfile.TemporaryDirectory() as folder:
        plugin = f"--plugin=protoc-gen-mypy={Path(sys.executable).with_name('protoc-gen-mypy')}"
        outputs = [f"--python_out={folder}", f"--mypy_out=quiet:{folder}"]
        if protoc.main(["protoc", plugin, f"-I{CONTRACT}", *outputs, "retry.proto"]):
            raise SystemExit("protoc failed on retry.proto")
        return (Path(folder) / name).read_text(encoding="utf-8")


def main(check: bool) -> int:
    """With `--check` nothing is written; exit 1 if something would change."""
    stale = []
    for path, make in files():
        text = make()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(path.relative_to(ROOT))
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    for path in stale:
        sys.stderr.write(f"{path}: {'stale; run `make generate`' if check else 'written'}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
