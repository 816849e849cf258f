"""docs/metrics.md lists every metric of the registry, with its meaning and an alert."""

from __future__ import annotations

from pathlib import Path

from tarry.service.metrics import Metrics
from tarry.service.reference import metrics_markdown

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_page_is_what_the_registry_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == metrics_markdown(), "run `make generate`"


def test_it_has_the_names_that_dashboards_use() -> None:
    named = {metric.name for metric in Metrics().registry.collect()}
    assert {"retries_scheduled", "retries_executed", "retries_exhausted", "retry_queue_depth"} <= named
    assert {"tarry_due", "tarry_requeued", "tarry_dead", "tarry_retries", "tarry_not_retryable"} <= named
