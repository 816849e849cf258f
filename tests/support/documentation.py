"""The code blocks of the pages: which there are, and what runs them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
GENERATED = {ROOT / "docs" / "cli.md"}
"""Only the commands' own help."""
FOLDERS = ("docs/**/*.md", "deploy/**/*.md", "clients/*.md", "clients/*/*.md")
PAGES = sorted(
    ({ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")})
    | ({path for folder in FOLDERS for path in ROOT.glob(folder)} - GENERATED)
)
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)

ELSEWHERE = {
    ".venv/bin/": "tests/acceptance/test_start_walkthrough.py",
    "make demo": "tests/acceptance/test_demo_isolation.py",
    "make up": "tests/acceptance/test_start_walkthrough.py",
    "make": "tests/unit/cli/test_docs_commands.py",
    ".ci/run": "tests/unit/test_compose.py",
    "curl -si -X POST -H 'content-type: application/x-protobuf' http://collector": "tests/acceptance/test_traces.py",
    "pip install": ".ci/release.py",
    "export": "tests/acceptance/test_start_walkthrough.py",
    "cat better.toml": "tests/acceptance/test_docs_commands_run.py",
    "docker": "tests/unit/test_image.py",
    "kubectl": "tests/unit/test_kubernetes.py",
    "eval": "tests/integration/cli/test_completion.py",
    "python examples/nservicebus/bridge.py": "tests/acceptance/test_migrate_guides.py",
    "python thread-pool/worker.py": "tests/acceptance/test_examples.py",
    "rabbitmqadmin": "tests/acceptance/test_examples.py",
    "npm install": "tests/acceptance/test_examples.py",
    "sh clients/java/build.sh": "tests/support/runtimes.py",
    "tarry embedded up": "tests/integration/embedded/test_cli_embedded.py",
    "tarry serve": "tests/acceptance/test_docs_commands_run.py",
    "RABBITMQ_URL=amqp://… DATABASE_URL=postgresql://… tarry serve": "tests/acceptance/test_docs_commands_run.py",
    "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318 tarry serve": "tests/acceptance/test_traces.py",
    "tarry events --follow": "tests/integration/events/test_read_events.py",
    "tarry import postgres": "tests/acceptance/test_import_postgres.py",
    "tarry attach orders --replace-dead-letter": "tests/acceptance/test_migrate_guides.py",
}
"""Lines that begin so, and what runs them, or for a cluster, an engine and an hour what checks what they need."""


class Block(NamedTuple):
    """A code block, with the line on which it begins."""

    page: Path
    line: int
    kind: str
    text: str

    @property
    def name(self) -> str:
        return str(self.page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        indented = re.sub(rf"^{found[1]}", "", found[3], flags=re.MULTILINE)
        yield Block(page, text.count("\n", 0, found.start()) + 1, found[2].strip(), indented)


def typed(page: Path) -> list[str]:
    """What a reader types into a shell, without the comments; a line that goes on in the next is one."""
    found = []
    for block in blocks(page):
        if block.kind in {"console", "sh"}:
            for line in block.text.replace("\\\n", " ").splitlines():
                text = line.strip()
                if text and (block.kind == "sh" or text.startswith("$ ")):
                    found.append(re.sub(r"\s+# .*$", "", text.removeprefix("$ ")))
    return found


def run_elsewhere(page: Path, line: str) -> str | None:
    """The file that runs this line, if test_docs_commands_run.py does not."""
    if page.name == "api.md" and line.startswith("curl"):
        return "tests/integration/web/test_docs_api_examples.py"
    return next((where for start, where in ELSEWHERE.items() if line.startswith(start)), None)
