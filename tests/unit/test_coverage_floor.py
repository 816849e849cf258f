from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_coverage_below_85_percent_fails_the_gate() -> None:
    """pytest-cov fails a run below `fail_under`, and the gate measures coverage."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["tool"]["coverage"]["report"]["fail_under"] >= 85
    assert "make test BROKER=all COVERAGE=1" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "$(if $(COVERAGE),--cov" in (ROOT / "Makefile").read_text(encoding="utf-8")
