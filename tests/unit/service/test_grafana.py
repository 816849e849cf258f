"""The dashboards: every metric is on one, every query is valid and names what exists, and no two panels overlap."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tarry.service import grafana
from tarry.service.alerts import ALERTS
from tarry.service.grafana import DASHBOARDS, INTERVAL, dashboard_text, default_panel
from tarry.service.reference import Family, families
from tests.support.prometheus import promtool
from tests.support.promql import mistakes, named

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "grafana" / "dashboards"
PAGES = sorted((ROOT / "docs").glob("*.md"))
NAMES = [dashboard.name for dashboard in DASHBOARDS]


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def queries(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


def test_dashboards_are_those_in_the_folder_and_fresh() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(NAMES)
    assert len({read(name)["uid"] for name in NAMES}) == len(NAMES)
    for name in NAMES:
        assert (FOLDER / f"{name}.json").read_text(encoding="utf-8") == dashboard_text(name), "run `make generate`"


def test_dashboards_show_every_metric() -> None:
    shown = {metric for name in NAMES for expr in queries(read(name)) for metric, _ in named(expr).selectors}
    missing = [one for one in families() if not {one.exposed, f"{one.name}_bucket", f"{one.name}_sum"} & shown]
    assert missing == []


@pytest.mark.parametrize("name", NAMES)
def test_dashboards_ask_for_what_exists(name: str) -> None:
    found = queries(read(name))
    assert len(found) > 5
    assert {expr: wrong for expr in found if (wrong := mistakes(expr))} == {}


def test_every_query_is_valid(tmp_path: Path) -> None:
    """Those of the dashboards and of docs/metrics.md; promtool checks only rules, so each is made one."""
    asked = {expr.replace(INTERVAL, "5m") for name in NAMES for expr in queries(read(name))} | set(of_the_docs())
    rules = [
        {"record": "a:query", "labels": {"number": str(number)}, "expr": expr} for number, expr in enumerate(asked)
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"{len(asked)} rules found" in promtool("check", "rules", tmp_path / "rules.yml")


def test_every_query_in_the_docs_names_what_exists() -> None:
    asked = of_the_docs()
    assert set(asked) > {alert.expr for alert in ALERTS}
    assert len(asked) > len(families())
    assert {expr: wrong for expr in asked if (wrong := mistakes(expr))} == {}


@pytest.mark.parametrize("name", NAMES)
def test_dashboards_have_panels_side_by_side(name: str) -> None:
    panels = read(name)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 for place in places)
    taken = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert all(before["y"] <= after["y"] for before, after in pairwise(places))


def test_dashboards_show_a_metric_that_nobody_has_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Family("tarry_new", "counter", ("queue",), "Something new.")
    monkeypatch.setattr(grafana, "families", lambda: (*families(), new))
    added = json.loads(dashboard_text("overview"))["panels"][-2:]
    assert [panel["title"] for panel in added] == ["Other", "tarry_new_total"]
    assert added[1]["targets"][0]["expr"] == f"sum by (queue) (rate(tarry_new_total[{INTERVAL}]))"


def test_default_panels_fit_the_type_of_the_metric() -> None:
    gauge, histogram = (
        default_panel(Family("tarry_some_seconds", kind, ("tier",), "Some.")) for kind in ("gauge", "histogram")
    )
    assert [query.expr for query in gauge.queries] == ["max by (tier) (tarry_some_seconds)"]
    assert [query.legend for query in histogram.queries] == ["p50", "p99"]
    assert (gauge.unit, histogram.unit) == ("s", "s")


def of_the_docs() -> list[str]:
    """Every query in the pages: text in code with the name of a metric, and a call, a matcher or a comparison."""
    texts = [text for page in PAGES for text in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))]
    about_metrics = re.compile(r"\b(tarry_|retries_|retry_queue_depth)").search
    return [text.replace("\\|", "|") for text in texts if about_metrics(text) and re.search(r"[({<>]|==", text)]
