"""docs/metrics.md lists every metric of the registry, with its meaning and an alert."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tarry.service.alerts import ALERTS, alerts_of
from tarry.service.metrics import Metrics
from tarry.service.reference import Family, families, metrics_markdown
from tests.support.promql import named

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_page_is_what_the_registry_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == metrics_markdown(), "run `make generate`"


def rows() -> dict[str, list[str]]:
    """The cells of each metric's row."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {found[0].strip("`"): found for found in cells}


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_the_last_column_is_about_the_metric_and_names_its_alerts(family: Family) -> None:
    *_, column = rows()[family.exposed]
    queries = [one.replace("\\|", "|") for one in re.findall(r"`([^`]+)`", column)]
    metrics = {name for query in queries for name, _ in named(query).selectors}
    assert metrics & {family.exposed, f"{family.name}_bucket", f"{family.name}_sum"}
    assert re.findall(r"\(`(Tarry\w+)`, (\w+)\)", column) == [
        (one.name, one.severity) for one in alerts_of(family.name)
    ]


def test_every_alert_is_in_the_row_of_its_metric() -> None:
    assert {alert.metric for alert in ALERTS} <= {family.name for family in families()}


def test_it_has_the_names_that_dashboards_use() -> None:
    named = {metric.name for metric in Metrics().registry.collect()}
    assert {"retries_scheduled", "retries_executed", "retries_exhausted", "retry_queue_depth"} <= named
    assert {"tarry_due", "tarry_requeued", "tarry_dead", "tarry_retries", "tarry_not_retryable"} <= named
