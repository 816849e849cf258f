"""Grafana's dashboards, made from the registry: a new metric gets a panel without anything being written here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tarry.service.reference import Family, families

INTERVAL = "$__rate_interval"
"""Grafana replaces it by a range that covers some scrapes."""

Json = dict[str, Any]

_WIDTH, _HEIGHT, _STAT_HEIGHT = 24, 8, 4


@dataclass(frozen=True, slots=True)
class Query:
    """One query, and how its series are named."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel, 24 columns being the whole width."""

    title: str
    queries: tuple[Query, ...]
    description: str = ""
    unit: str = "short"
    kind: Literal["timeseries", "stat", "table"] = "timeseries"
    width: int = 12
    red_above: float | None = None
    below_zero: bool = False


@dataclass(frozen=True, slots=True)
class PanelRow:
    """Panels under one heading. A text is the name of a metric in the registry, and stands for its default panel."""

    title: str
    panels: tuple[Panel | str, ...]


@dataclass(frozen=True, slots=True)
class GrafanaDashboard:
    """One dashboard, which is one file."""

    name: str
    title: str
    rows: tuple[PanelRow, ...]
    by_queue: bool = False
    """Whether its queries have the variable `queue`."""


def _stat(title: str, expr: str, description: str, *, red_above: float | None = None, unit: str = "short") -> Panel:
    return Panel(title, (Query(expr, ""),), description, unit, "stat", 4, red_above)


def _rate(title: str, name: str, by: str, description: str, where: str = "") -> Panel:
    expr = f"sum by ({by}) (rate({name}_total{where}[{INTERVAL}]))"
    return Panel(title, (Query(expr, "{{" + by + "}}"),), description, "ops")


_SELECTED = '{queue=~"$queue"}'

DASHBOARDS = (
    GrafanaDashboard(
        "overview",
        "tarry: overview",
        (
            PanelRow(
                "Now",
                (
                    _stat("Waiting", "max(retry_queue_depth)", "Messages in tiers."),
                    _stat("Due now", "max(tarry_due_now)", "Due, and not back in their queue.", red_above=1_000),
                    _stat("Overdue", "max(tarry_overdue)", "Late, and not seen to return.", red_above=1),
                    _stat("Missing", "max(tarry_missing)", "The broker does not have them.", red_above=1),
                    _stat("In review", 'max(tarry_open{state="in_review"})', "A person decides about them."),
                    _stat("Routers at work", "sum(tarry_consuming)", "Routers that receive requests."),
                ),
            ),
            PanelRow(
                "Alerts",
                (
                    Panel(
                        "Firing",
                        (Query('ALERTS{alertname=~"Tarry.+", alertstate="firing"}', ""),),
                        "Of deploy/prometheus/tarry.rules.yml. Each has a section in docs/operations.md.",
                        kind="table",
                        width=24,
                    ),
                ),
            ),
            PanelRow(
                "What happens",
                (
                    _rate("Scheduled", "retries_scheduled", "queue", "How much fails, and where."),
                    _rate("Executed, by status", "retries_executed", "status", "Returns, and what became of them."),
                    Panel(
                        "Success after a retry",
                        (
                            Query(
                                'sum(rate(retries_executed_total{status=~"success|presumed"}[1h]))'
                                ' / sum(rate(retries_executed_total{status=~"success|presumed|failed"}[1h]))',
                                "of all outcomes",
                            ),
                        ),
                        "The share of returned messages that then succeeded, over an hour.",
                        "percentunit",
                    ),
                    _rate("Ends without success", "tarry_dead", "queue", "Exhausted or final."),
                    "tarry_retries",
                    "tarry_events_published",
                    "tarry_events_lag_seconds",
                ),
            ),
        ),
    ),
    GrafanaDashboard(
        "destinations",
        "tarry: destinations",
        (
            PanelRow(
                "Returns",
                (
                    _rate("Scheduled", "retries_scheduled", "queue", "Retries published to a tier.", _SELECTED),
                    _rate("Requeued", "tarry_requeued", "queue", "Retries that reached their queue.", _SELECTED),
                    _rate("Due", "tarry_due", "queue", "Retries whose wait is over.", _SELECTED),
                    _rate("By status", "retries_executed", "status", "What became of the returns.", _SELECTED),
                ),
            ),
            PanelRow(
                "Ends",
                (
                    _rate("Exhausted", "retries_exhausted", "queue", "Used all their retries.", _SELECTED),
                    _rate("Final", "tarry_not_retryable", "queue", "Errors that are not retried.", _SELECTED),
                    _rate("To review", "tarry_reviewed", "queue", "Sent to review, for any reason.", _SELECTED),
                    _rate("Skipped", "retries_skipped", "queue", "Not wanted any more.", _SELECTED),
                    _rate("Cancelled", "tarry_cancelled", "queue", "Cancelled by operators.", _SELECTED),
                    "tarry_retries_by_attempt",
                    "tarry_outcomes_by_attempt",
                ),
            ),
            PanelRow(
                "Held back",
                (
                    "tarry_stalled",
                    "tarry_attachments",
                    "tarry_breaker_state",
                    "tarry_breaker_changes",
                    "tarry_throttle_rate",
                    "tarry_throttle_held",
                ),
            ),
            PanelRow("Webhooks", ("tarry_webhook_deliveries", "tarry_webhook_delivery_seconds")),
        ),
        by_queue=True,
    ),
    GrafanaDashboard(
        "way-home",
        "tarry: the broker's way home",
        (
            PanelRow(
                "Tiers",
                (
                    "retry_queue_depth",
                    "tarry_tier_depth",
                    "tarry_tier_open",
                    Panel(
                        "Broker minus audit",
                        (Query("max by (tier) (tarry_tier_depth - tarry_tier_open)", "{{tier}}"),),
                        "Above 0 for long: messages that the audit does not know. Below 0: messages are missing.",
                        below_zero=True,
                    ),
                ),
            ),
            PanelRow(
                "Drift",
                (
                    "tarry_drift_seconds",
                    Panel(
                        "p99 by tier",
                        (
                            Query(
                                "histogram_quantile(0.99, sum by (le, tier) "
                                f"(rate(tarry_drift_seconds_bucket[{INTERVAL}])))",
                                "{{tier}}",
                            ),
                        ),
                        "From the due time of a retry to its return.",
                        "s",
                    ),
                    "tarry_overdue",
                    "tarry_oldest_overdue_seconds",
                ),
            ),
            PanelRow("Detours", ("tarry_stuck", "tarry_detours", "tarry_unroutable", "tarry_layovers")),
        ),
    ),
    GrafanaDashboard(
        "audit",
        "tarry: audit",
        (
            PanelRow("Open retries", ("tarry_open", "tarry_due_now", "tarry_missing", "tarry_stuck_attempts")),
            PanelRow("Outcomes", ("tarry_anomaly", "tarry_presumed", "tarry_stuck_recovered", "tarry_duplicates")),
            PanelRow(
                "Postgres",
                (
                    "tarry_degraded",
                    "tarry_postgres_trouble",
                    "tarry_spooled",
                    "tarry_audit_refused",
                    "tarry_statistics_lag_seconds",
                ),
            ),
        ),
    ),
    GrafanaDashboard(
        "routers",
        "tarry: routers",
        (
            PanelRow(
                "At work",
                (
                    Panel(
                        "Receives requests",
                        (Query("tarry_consuming", "{{instance}}"),),
                        "1 while the broker delivers requests to this router.",
                    ),
                    Panel(
                        "Requests by router",
                        (Query(f"sum by (instance) (rate(tarry_batch_size_sum[{INTERVAL}]))", "{{instance}}"),),
                        "Requests handled a second.",
                        "ops",
                    ),
                    "tarry_blocked",
                    "tarry_intake_paused",
                ),
            ),
            PanelRow("Batches", ("tarry_batch_size", "tarry_decision_seconds", "tarry_confirm_seconds")),
            PanelRow(
                "Guards",
                (
                    "tarry_eligibility_requests",
                    "tarry_eligibility_unknown",
                    "tarry_budget",
                    "tarry_checked",
                    "tarry_adaptive",
                ),
            ),
            PanelRow(
                "Changes",
                ("tarry_reconnects", "tarry_reloads", "tarry_policy_info", "tarry_build_info", "tarry_spans"),
            ),
        ),
    ),
)


def dashboard_text(name: str) -> str:
    """deploy/grafana/dashboards/<name>.json."""
    found = next(one for one in DASHBOARDS if one.name == name)
    return json.dumps(_dashboard(found, _rows(found)), indent=2, ensure_ascii=False) + "\n"


def _rows(dashboard: GrafanaDashboard) -> list[PanelRow]:
    """The rows; on the first dashboard also one with every metric that is on none."""
    rows = list(dashboard.rows)
    shown = " ".join(
        query.expr for one in DASHBOARDS for row in one.rows for panel in row.panels for query in _panel(panel).queries
    )
    others = tuple(family.name for family in families() if family.exposed not in shown)
    return [*rows, PanelRow("Other", others)] if others and dashboard is DASHBOARDS[0] else rows


def _panel(panel: Panel | str) -> Panel:
    return panel if isinstance(panel, Panel) else default_panel(next(one for one in families() if one.name == panel))


def default_panel(family: Family) -> Panel:
    """As the type of a metric suggests."""
    title = family.exposed
    legend = " ".join("{{" + label + "}}" for label in family.labels)
    by = f" by ({', '.join(family.labels)})" if family.labels else ""
    if family.kind == "counter":
        expr = f"sum{by} (rate({family.exposed}[{INTERVAL}]))"
        return Panel(title, (Query(expr, legend or "all"),), family.text, "ops")
    if family.kind == "histogram":
        bucket = f"sum by (le) (rate({family.exposed}_bucket[{INTERVAL}]))"
        queries = tuple(Query(f"histogram_quantile({q}, {bucket})", f"p{q * 100:g}") for q in (0.5, 0.99))
        return Panel(title, queries, family.text, "s" if title.endswith("_seconds") else "short")
    unit = "s" if title.endswith("_seconds") else "short"
    return Panel(title, (Query(f"max{by} ({family.exposed})", legend or "max"),), family.text, unit)


def _dashboard(dashboard: GrafanaDashboard, rows: Sequence[PanelRow]) -> Json:
    return {
        "uid": f"tarry-{dashboard.name}",
        "title": dashboard.title,
        "description": "Written by `make generate` from src/tarry/service/grafana.py.",
        "tags": ["tarry"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "",
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [
            {
                "type": "dashboards",
                "title": "tarry",
                "tags": ["tarry"],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "annotations": {"list": []},
        "templating": {"list": list(_variables(by_queue=dashboard.by_queue))},
        "panels": list(_placed(rows)),
    }


def _variables(*, by_queue: bool) -> Iterator[Json]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}
    if by_queue:
        query = "label_values(retries_scheduled_total, queue)"
        yield {
            "name": "queue",
            "label": "Queue",
            "type": "query",
            "datasource": _SOURCE,
            "definition": query,
            "query": {"query": query, "refId": "queues"},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _placed(rows: Sequence[PanelRow]) -> Iterator[Json]:
    """All panels with their places, from left to right and from top to bottom."""
    number = top = 0
    for row in rows:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": top, "w": _WIDTH, "h": 1},
        }
        top += 1
        left = height = 0
        for panel in map(_panel, row.panels):
            if left + panel.width > _WIDTH:
                left, top = 0, top + height
            number += 1
            height = _STAT_HEIGHT if panel.kind == "stat" else _HEIGHT
            yield _drawn(panel, number, {"x": left, "y": top, "w": panel.width, "h": height})
            left += panel.width
        top += height


def _drawn(panel: Panel, number: int, place: Json) -> Json:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "gridPos": place,
        "datasource": _SOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
                **({"instant": True, "format": "table"} if panel.kind == "table" else {"range": True}),
            }
            for index, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
    }


def _defaults(panel: Panel) -> Json:
    steps: list[Json] = [{"color": "green", "value": None}]
    if panel.red_above is not None:
        steps.append({"color": "red", "value": panel.red_above})
    found: Json = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "timeseries":
        found |= {"min": None if panel.below_zero else 0, "custom": {"fillOpacity": 10, "showPoints": "never"}}
    return found


def _options(panel: Panel) -> Json:
    if panel.kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value"}
    if panel.kind == "table":
        return {"showHeader": True}
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
