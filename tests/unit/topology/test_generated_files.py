"""What is generated from the shipped topology and kept in the repository is what would be generated now."""

from __future__ import annotations

from pathlib import Path

from tarry.topology.definitions import definitions_text
from tarry.topology.load import load
from tarry.topology.schema import schema_text
from tarry.topology.show import mermaid, svg

ROOT = Path(__file__).parents[3]
SHIPPED = load(ROOT / "topology")


def test_definitions_json() -> None:
    assert (ROOT / "definitions.json").read_text(encoding="utf-8") == definitions_text(SHIPPED)


def test_the_schema_of_the_topology_files() -> None:
    assert (ROOT / "topology" / "schema.json").read_text(encoding="utf-8") == schema_text()


def test_the_pictures_in_the_documentation() -> None:
    assert f"```mermaid\n{mermaid(SHIPPED)}```" in (ROOT / "docs" / "topology.md").read_text(encoding="utf-8")
    assert (ROOT / "docs" / "topology.svg").read_text(encoding="utf-8") == svg(SHIPPED)
