"""The runbook has one section for each symptom, and every metric in it is counted."""

from __future__ import annotations

import re
from pathlib import Path

from tarry.service.metrics import Metrics

DOCS = Path(__file__).parents[3] / "docs"
RUNBOOK = (DOCS / "operations.md").read_text(encoding="utf-8")


def test_every_symptom_says_what_to_run_and_when_it_is_over() -> None:
    sections = {part.partition("\n")[0]: part for part in RUNBOOK.split("\n## ")[1:]}
    sections.pop("Who did that?")
    assert len(sections) >= 19
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
