"""Generates docs/metrics.md from the registry; a metric without an alert and without an entry here is an error."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from prometheus_client.metrics_core import GaugeMetricFamily

from tarry.core.durations import humanise
from tarry.service.alerts import Alert, alerts_of
from tarry.service.metrics import Metrics

_HEAD = """# Metrics

`GET /metrics` on `HTTP_PORT` responds in the Prometheus format. This page is generated from the service's registry by
`make generate`.

The number of labels is limited: `queue` and `tier` have at most 200 values each and all others share `other`;
`attempt` ends with `11+`. Several routers each count what they did themselves, so sum over them; `retry_queue_depth` is
the same at all of them, so take the maximum.

The last column names the alert on a metric, if there is one, with its severity: `critical` needs an action now,
`warning` today. The rules are in [deploy/prometheus](../deploy/prometheus/tarry.rules.yml), each with a link to its
section in [operations.md](operations.md), and five dashboards in [deploy/grafana](../deploy/grafana/dashboards);
[running.md](running.md#traces-dashboards-and-alerts) says how to use them. For a metric without an alert the column
says what to look at.

| metric | type | labels | meaning | an alert, or what to look at |
|---|---|---|---|---|
"""

_WORTH = {
    "retries_scheduled": "`sum by (queue) (rate(retries_scheduled_total[5m]))`: how much fails, and where",
    "retries_executed": '`sum(rate(retries_executed_total{status="unroutable"}[15m])) > 0`: queues are missing',
    "retries_skipped": "`sum by (queue) (increase(retries_skipped_total[1h]))`: how many are not wanted any more",
    "tarry_due": "`sum(increase(tarry_due_total[1h])) - sum(increase(tarry_requeued_total[1h]))`: due, and not back",
    "tarry_requeued": "`rate(tarry_requeued_total[5m])`: retries returned",
    "tarry_dead": "`increase(tarry_dead_total[1h]) > 0`: the review queue needs attention",
    "tarry_retries": '`tarry_retries_total{kind="manual"}`: how often operators retry by hand',
    "tarry_retries_by_attempt": "`rate(tarry_retries_by_attempt_total[1h])`: which attempts are reached",
    "tarry_outcomes_by_attempt": "`sum by (attempt, outcome) (increase(tarry_outcomes_by_attempt_total[1d]))`: which "
    "attempts still help; `GET /api/v1/audit/attempts` answers the same from the audit",
    "tarry_not_retryable": "`rate(tarry_not_retryable_total[5m])`: errors that are not retried",
    "tarry_checked": "`sum by (policy, outcome) (increase(tarry_checked_total[1h]))`: what is skipped when due",
    "tarry_adaptive": "`sum by (policy, outcome) (increase(tarry_adaptive_total[1h]))`: what goes to review because "
    "its error is given up; `tarry adaptive` lists the errors",
    "tarry_tier_open": "`topk(5, max by (tier) (tarry_tier_open))`: where messages wait",
    "tarry_presumed": "`rate(tarry_presumed_total[1h])`: successes that no consumer reported",
    "tarry_cancelled": "`increase(tarry_cancelled_total[1h])`: how many retries operators cancel",
    "tarry_postgres_trouble": "`max by (kind) (tarry_postgres_trouble) == 1`: what is wrong with Postgres",
    "tarry_throttle_rate": "`max by (destination) (tarry_throttle_rate)`: which destinations are throttled",
    "tarry_events_published": "`sum by (type) (rate(tarry_events_published_total[5m]))`: what happens",
    "tarry_open": "`max by (state) (tarry_open)`: open retries; `in_review` are messages to review",
    "tarry_spooled": "`increase(tarry_spooled[1h]) > 0`: Postgres was unavailable at times",
    "tarry_policy_info": "`count by (policy) (tarry_policy_info)`: do all routers use the same policies?",
    "tarry_build_info": "`count by (version) (tarry_build_info)`: is a rollout complete?",
}


class Family(NamedTuple):
    """One metric of the registry."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str

    @property
    def exposed(self) -> str:
        """Its name in queries; that of a histogram has more endings."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


@cache
def families() -> tuple[Family, ...]:
    """Every metric. The labels come from the collectors: a metric without samples does not show them."""
    metrics = Metrics()
    own = {getattr(found, "_name", None): found for found in vars(metrics).values()}

    def labels(family: object, name: str) -> tuple[str, ...]:
        collector = family if isinstance(family, GaugeMetricFamily) else own.get(name)
        return tuple(getattr(collector, "_labelnames", ()))

    return tuple(
        Family(one.name, one.type, labels(one, one.name), one.documentation) for one in metrics.registry.collect()
    )


def metrics_markdown() -> str:
    """The whole page."""
    return _HEAD + "".join(map(_row, families()))


def _row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.exposed}` | {family.kind} | {labels} | {family.text} | {_escaped(_worth(family.name))} |\n"


def _worth(name: str) -> str:
    alerts = [_alert(alert) for alert in alerts_of(name)]
    return "; ".join([*alerts, _WORTH[name]] if name in _WORTH or not alerts else alerts)


def _alert(alert: Alert) -> str:
    held = f" for {humanise(alert.for_s * 1_000)}" if alert.for_s else ""
    summary = re.sub(r"{{ \$labels\.(\w+) }}", r"*\1*", alert.summary)
    return f"`{alert.expr}`{held}: {summary} (`{alert.name}`, {alert.severity})"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
