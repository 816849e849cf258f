"""Each alert fires when it should and not when it should not, by promtool's own test; and leads to its runbook."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tarry.core.policy import Policy
from tarry.service.alerts import ALERTS, Alert, rules_text
from tarry.service.metrics import Metrics
from tests.support.prometheus import promtool
from tests.support.promql import mistakes

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "prometheus" / "tarry.rules.yml"
AT = 120
"""Minutes after which every alert that can fire does: the longest waits for an hour."""

Series = Mapping[str, str]
"""By selector, the values minute by minute in promtool's notation: `0+2x9` counts up by 2, nine times."""


class Case(NamedTuple):
    """When an alert fires, with the labels that it then has, and when it does not."""

    fires: Series
    quiet: Series
    labels: Mapping[str, str] = {}


def constant(value: float) -> str:
    return f"{value:g}x{AT}"


def rising(by: float) -> str:
    return f"0+{by:g}x{AT}"


def gauge(metric: str, above: float, below: float, **labels: str) -> Case:
    selector = metric + ("{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}")
    return Case({selector: constant(above)}, {selector: constant(below)}, labels)


def counter(metric: str, above: float, below: float, more: str = "", **labels: str) -> Case:
    """Rises by so much a minute."""
    inside = [*(f'{name}="{value}"' for name, value in labels.items()), *([more] if more else [])]
    selector = metric + "{" + ", ".join(inside) + "}"
    return Case({selector: rising(above)}, {selector: rising(below)}, labels)


def histogram(metric: str, slow: str, fast: str, **labels: str) -> Case:
    """All observations in the bucket `slow`, or all in `fast`."""
    more = "".join(f', {name}="{value}"' for name, value in labels.items())

    def series(le: str, least: str) -> Series:
        edges = sorted({fast, slow, least}, key=float)
        found = {
            f'{metric}_bucket{{le="{edge}"{more}}}': rising(60 if float(edge) >= float(le) else 0) for edge in edges
        }
        return found | {f'{metric}_bucket{{le="+Inf"{more}}}': rising(60)}

    return Case(series(slow, slow), series(fast, slow), labels)


CASES = {
    "TarryNoRouter": gauge("tarry_consuming", 0, 1),
    "TarryBrokerAlarm": gauge("tarry_blocked", 1, 0),
    "TarryIntakePaused": gauge("tarry_intake_paused", 1, 0),
    "TarryConnectionUnstable": counter("tarry_reconnects_total", 1, 0.2, part="router"),
    "TarryPublishesRefused": counter("tarry_stuck_total", 1, 0, outcome="nacked"),
    "TarryTierBypassed": counter("tarry_detours_total", 1, 0, outcome="returned"),
    "TarryReloadRefused": Case(
        {'tarry_reloads_total{outcome="refused"}': rising(1)}, {'tarry_reloads_total{outcome="used"}': rising(1)}
    ),
    "TarryFullLoad": Case(
        {"tarry_batch_size_sum": rising(4_500), "tarry_batch_size_count": rising(10)},
        {"tarry_batch_size_sum": rising(3_500), "tarry_batch_size_count": rising(10)},
    ),
    "TarryDestinationStalled": gauge("tarry_stalled", 1, 0, queue="retry.relay.orders"),
    "TarryOverdue": gauge("tarry_overdue", 1, 0),
    "TarryLongOverdue": gauge("tarry_oldest_overdue_seconds", 301, 300),
    "TarryDueNotReturned": gauge("tarry_due_now", 1001, 1000),
    "TarryReturnsLate": histogram("tarry_drift_seconds", "30", "0.5"),
    "TarryManyWait": gauge("retry_queue_depth", 100_001, 100_000),
    "TarryThrottleTooLow": Case(
        {'tarry_throttle_held{destination="o"}': constant(6_100), 'tarry_throttle_rate{destination="o"}': constant(10)},
        {'tarry_throttle_held{destination="o"}': constant(6_000), 'tarry_throttle_rate{destination="o"}': constant(10)},
        {"destination": "o"},
    ),
    "TarryExhausted": counter("retries_exhausted_total", 2, 1.5, queue="orders"),
    "TarryAnomaly": Case(
        {'tarry_anomaly{kind="queue", name="orders"}': constant(0.9)},
        {'tarry_anomaly{kind="queue", name="orders"}': f"_x{AT}"},
        {"kind": "queue", "name": "orders"},
    ),
    "TarryBreakerOpen": gauge("tarry_breaker_state", 2, 1, destination="orders"),
    "TarryBreakerUnsteady": Case(
        {'tarry_breaker_changes_total{destination="orders", to="open"}': rising(0.2)},
        {
            'tarry_breaker_changes_total{destination="orders", to="open"}': rising(0.05),
            'tarry_breaker_changes_total{destination="orders", to="closed"}': rising(1),
        },
        {"destination": "orders"},
    ),
    "TarryUnroutable": counter("tarry_unroutable_total", 1, 0, outcome="review"),
    "TarryAttachment": Case(
        {'tarry_attachments{state="overridden"}': constant(1)},
        {'tarry_attachments{state="overridden"}': constant(0), 'tarry_attachments{state="ok"}': constant(3)},
        {"state": "overridden"},
    ),
    "TarryReviewGrows": counter("tarry_reviewed_total", 1, 0.7, queue="orders"),
    "TarryLayoverUnreadable": Case(
        {'tarry_layovers_total{outcome="review"}': rising(0.1)}, {'tarry_layovers_total{outcome="sent"}': rising(5)}
    ),
    "TarryStuckAttempts": gauge("tarry_stuck_attempts", 1, 0),
    "TarryStuckRecovered": counter("tarry_stuck_recovered_total", 1, 0, to="queue"),
    "TarryDuplicates": counter("tarry_duplicates_total", 120, 30),
    "TarryMissing": gauge("tarry_missing", 1, 0),
    "TarryTierDiffers": Case(
        {'tarry_tier_depth{tier="t"}': constant(3), 'tarry_tier_open{tier="t"}': constant(2)},
        {'tarry_tier_depth{tier="t"}': constant(2), 'tarry_tier_open{tier="t"}': constant(3)},
        {"tier": "t"},
    ),
    "TarryAuditBlind": Case({"tarry_consuming": constant(1)}, {'tarry_open{state="scheduled"}': constant(0)}),
    "TarryDegraded": gauge("tarry_degraded", 1, 0),
    "TarryAuditRefused": gauge("tarry_audit_refused", 1, 0),
    "TarryBudgetsNotApplied": Case(
        {'tarry_budget_total{policy="p", outcome="unapplied"}': rising(1)},
        {'tarry_budget_total{policy="p", outcome="defer"}': rising(1)},
        {"policy": "p"},
    ),
    "TarrySlowDecisions": histogram("tarry_decision_seconds", "2.5", "0.5"),
    "TarrySlowBroker": histogram("tarry_confirm_seconds", "2.5", "0.5"),
    "TarryEligibilityUnanswered": Case(
        {'tarry_eligibility_requests_total{policy="p", outcome="failed"}': rising(1)},
        {'tarry_eligibility_requests_total{policy="p", outcome="answered"}': rising(1)},
        {"policy": "p"},
    ),
    "TarryEligibilityUnknown": counter("tarry_eligibility_unknown_total", 1, 0, policy="p", treated="allow"),
    "TarryEventsLate": gauge("tarry_events_lag_seconds", 121, 120),
    "TarryStatisticsLate": gauge("tarry_statistics_lag_seconds", 901, 900),
    "TarryWebhookFails": Case(
        {'tarry_webhook_deliveries_total{webhook="w", outcome="failed"}': rising(1)},
        {'tarry_webhook_deliveries_total{webhook="w", outcome="delivered"}': rising(1)},
        {"webhook": "w"},
    ),
    "TarryWebhookSlow": histogram("tarry_webhook_delivery_seconds", "10", "2.5", webhook="w"),
    "TarrySpansLost": counter("tarry_spans_total", 1, 0, outcome="dropped"),
}
MORE_QUIET: dict[str, Series] = {
    "TarryNoRouter": {"tarry_consuming": constant(0), "tarry_intake_paused": constant(1)},
}
"""Other series with which an alert does not fire."""


def _name(alert: Alert) -> str:
    return alert.name


def test_alerts_have_a_case_each() -> None:
    assert set(CASES) == {alert.name for alert in ALERTS}
    assert len(CASES) == len(ALERTS)


def test_rules_are_valid_for_prometheus() -> None:
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", RULES)
    assert RULES.read_text() == rules_text(), "run `make generate`"


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    files = [write_tests(alert, CASES[alert.name], tmp_path) for alert in ALERTS]
    assert promtool("test", "rules", *files).count("SUCCESS") == len(ALERTS)


@pytest.mark.parametrize("wrong", [{"fires": CASES["TarryMissing"].quiet}, {"quiet": CASES["TarryMissing"].fires}])
def test_alerts_that_do_otherwise_fail_the_test(wrong: dict[str, Any], tmp_path: Path) -> None:
    alert = next(one for one in ALERTS if one.name == "TarryMissing")
    tests = write_tests(alert, CASES[alert.name]._replace(**wrong), tmp_path)
    with pytest.raises(AssertionError, match="FAILED"):
        promtool("test", "rules", tests)


def test_scaled_rules_are_the_same_with_shorter_times(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(rules_text(0.01))
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", tmp_path / "rules.yml")
    stalled = yaml.safe_load(rules_text(0.01))["groups"][0]["rules"]
    assert {one["alert"]: one.get("for") for one in stalled}["TarryDestinationStalled"] == "1200ms"
    assert any("[3s]" in one["expr"] for one in stalled)


@pytest.mark.parametrize("alert", ALERTS, ids=_name)
def test_alerts_lead_to_their_section_of_the_runbook(alert: Alert) -> None:
    page, _, anchor = alert.runbook.partition("#")
    headings = re.findall(r"^## (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor in {heading.lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("alert", ALERTS, ids=_name)
def test_alerts_name_metrics_and_labels_that_exist(alert: Alert) -> None:
    assert mistakes(alert.expr) == []
    assert f"{alert.metric}" in alert.expr
    assert set(re.findall(r"\$labels\.(\w+)", alert.summary)) <= set(CASES[alert.name].labels)


@pytest.mark.parametrize("alert", [one for one in ALERTS if re.search(r"\bincrease\(.*> 0$", one.expr)], ids=_name)
def test_alerts_on_any_increase_see_the_first_one(alert: Alert) -> None:
    """An increase begins at the first value that was scraped: a series must be there before anything is counted."""
    metrics = Metrics()
    asked = {"url": "https://example.com/ask", "key": "user"}
    rules = {"eligibility": asked, "budget": {"per": "queue", "every": "1h", "limit": 5}}
    metrics.show_policies([Policy.model_validate({"name": "p", "schedule": ["1s"], "max_retries": 1, **rules})])
    metrics.show_webhooks(["w"])
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    for selector in CASES[alert.name].fires:
        name, _, matchers = selector.partition("{")
        labels = dict(re.findall(r'(\w+)="([^"]*)"', matchers))
        assert [sample.value for sample in samples if (sample.name, sample.labels) == (name, labels)] == [0.0]


def write_tests(alert: Alert, case: Case, folder: Path) -> Path:
    """The tests of one rule, with that rule alone: promtool evaluates all rules of a file in every test."""
    (rule,) = (one for one in yaml.safe_load(RULES.read_text())["groups"][0]["rules"] if one["alert"] == alert.name)
    rules, tests = folder / f"{alert.name}.yml", folder / f"{alert.name}_test.yml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "tarry", "rules": [rule]}]}))
    tests.write_text(yaml.safe_dump({"rule_files": [str(rules)], "tests": scenes(alert, case)}))
    return tests


def scenes(alert: Alert, case: Case) -> list[dict[str, Any]]:
    """It fires; it does not yet, while it must hold; it does not fire."""
    summary = re.sub(r"{{ \$labels\.(\w+) }}", lambda found: case.labels[found[1]], alert.summary)
    expected = {
        "exp_labels": {"severity": alert.severity, **case.labels},
        "exp_annotations": {"summary": f"tarry: {summary}", "runbook_url": alert.runbook},
    }
    quiet = [case.quiet, *([MORE_QUIET[alert.name]] if alert.name in MORE_QUIET else [])]
    return [
        _scene(alert, case.fires, f"{AT}m", [expected]),
        *([_scene(alert, case.fires, f"{alert.for_s // 2}s", [])] if alert.for_s else []),
        *(_scene(alert, series, f"{AT}m", []) for series in quiet),
    ]


def _scene(alert: Alert, series: Series, at: str, expected: list[Any]) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": [{"series": selector, "values": values} for selector, values in series.items()],
        "alert_rule_test": [{"eval_time": at, "alertname": alert.name, "exp_alerts": expected}],
    }
