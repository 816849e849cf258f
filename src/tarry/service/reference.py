"""Generates docs/metrics.md from the registry; a metric without an entry here is an error."""

from __future__ import annotations

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from tarry.service.metrics import Metrics

_HEAD = """# Metrics

`GET /metrics` on `HTTP_PORT` responds in the Prometheus format. This page is generated from the service's registry by
`make generate`.

The number of labels is limited: `queue` and `tier` have at most 200 values each and all others share `other`;
`attempt` ends with `11+`. Several routers each count what they did themselves, so sum over them; `retry_queue_depth` is
the same at all of them, so take the maximum.

| metric | type | labels | meaning | an alert, or what to look at |
|---|---|---|---|---|
"""

_WORTH = {
    "retries_scheduled": "`sum by (queue) (rate(retries_scheduled_total[5m]))`: how much fails, and where",
    "retries_executed": '`sum(rate(retries_executed_total{status="unroutable"}[15m])) > 0`: queues are missing',
    "retries_exhausted": "`sum by (queue) (increase(retries_exhausted_total[1h])) > 100`: retries do not help there",
    "retries_skipped": "`sum by (queue) (increase(retries_skipped_total[1h]))`: how many are not wanted any more",
    "retry_queue_depth": "`max(retry_queue_depth) > 100000`: far more waits than usual",
    "tarry_due": "`sum(increase(tarry_due_total[1h])) - sum(increase(tarry_requeued_total[1h]))`: due, and not back",
    "tarry_requeued": "`rate(tarry_requeued_total[5m])`: retries returned",
    "tarry_dead": "`increase(tarry_dead_total[1h]) > 0`: the review queue needs attention",
    "tarry_retries": '`tarry_retries_total{kind="manual"}`: how often operators retry by hand',
    "tarry_retries_by_attempt": "`rate(tarry_retries_by_attempt_total[1h])`: which attempts are reached",
    "tarry_outcomes_by_attempt": "`sum by (attempt, outcome) (increase(tarry_outcomes_by_attempt_total[1d]))`: which "
    "attempts still help; `GET /api/v1/audit/attempts` answers the same from the audit",
    "tarry_not_retryable": "`rate(tarry_not_retryable_total[5m])`: errors that are not retried",
    "tarry_reviewed": "`sum by (queue) (increase(tarry_reviewed_total[1h])) > 50`: many messages to review",
    "tarry_duplicates": "`rate(tarry_duplicates_total[5m]) > 1`: requests are sent twice, or routers crash",
    "tarry_stuck": "`increase(tarry_stuck_total[5m]) > 0`: a tier is missing (`returned`) or full (`nacked`)",
    "tarry_detours": "`increase(tarry_detours_total[5m]) > 0`: as above, and the ladder was used instead",
    "tarry_unroutable": "`increase(tarry_unroutable_total[15m]) > 0`: a queue was deleted, or lost its binding",
    "tarry_layovers": '`increase(tarry_layovers_total{outcome="review"}[1d]) > 0`: a message was not readable',
    "tarry_reconnects": "`increase(tarry_reconnects_total[10m]) > 5`: the connection to the broker is unstable",
    "tarry_reloads": '`increase(tarry_reloads_total{outcome="refused"}[10m]) > 0`: a changed file is not in use',
    "tarry_budget": '`increase(tarry_budget_total{outcome="unapplied"}[5m]) > 0`: budgets are not applied',
    "tarry_eligibility_requests": '`increase(tarry_eligibility_requests_total{outcome="failed"}[5m]) > 0`: no answers',
    "tarry_checked": "`sum by (policy, outcome) (increase(tarry_checked_total[1h]))`: what is skipped when due",
    "tarry_eligibility_unknown": "`increase(tarry_eligibility_unknown_total[5m]) > 0`: on_error decides",
    "tarry_batch_size": "`histogram_quantile(0.5, rate(tarry_batch_size_bucket[5m])) > 400`: at full load",
    "tarry_decision_seconds": "`histogram_quantile(0.99, rate(tarry_decision_seconds_bucket[5m])) > 1`: slow Postgres",
    "tarry_confirm_seconds": "`histogram_quantile(0.99, rate(tarry_confirm_seconds_bucket[5m])) > 1`: slow broker",
    "tarry_drift_seconds": "`histogram_quantile(0.99, sum by (le) (rate(tarry_drift_seconds_bucket[5m]))) > 5`: late",
    "tarry_open": '`max(tarry_open{state="unroutable"}) > 0`: queues are missing; `in_review`: messages to review',
    "tarry_due_now": "`max(tarry_due_now) > 1000` for 5 m: retries come due and do not return; see `tarry status`",
    "tarry_overdue": "`max(tarry_overdue) > 0` for 5 m: run `tarry status` and see which tier or queue",
    "tarry_oldest_overdue_seconds": "`max(tarry_oldest_overdue_seconds) > 300`: something is stuck",
    "tarry_missing": "`max(tarry_missing) > 0`: urgent; `tarry audit verify` names them, `recover` sends them",
    "tarry_stuck_attempts": "`max(tarry_stuck_attempts) > 0` for 45 m: `tarry stuck` names them and their consumers",
    "tarry_stuck_recovered": "`increase(tarry_stuck_recovered_total[1h]) > 0`: consumers hang; the log says which",
    "tarry_tier_open": "`topk(5, max by (tier) (tarry_tier_open))`: where messages wait",
    "tarry_tier_depth": "`max by (tier) (tarry_tier_depth - tarry_tier_open) > 0` for 15 m: audit and broker differ",
    "tarry_attachments": '`max by (state) (tarry_attachments{state!="ok"}) > 0` for 5 m: run `tarry attach --list`',
    "tarry_stalled": "`max by (queue) (tarry_stalled) > 0`: the log names the destination behind it",
    "tarry_presumed": "`rate(tarry_presumed_total[1h])`: successes that no consumer reported",
    "tarry_cancelled": "`increase(tarry_cancelled_total[1h])`: how many retries operators cancel",
    "tarry_postgres_trouble": "`max by (kind) (tarry_postgres_trouble) == 1`: what is wrong with Postgres",
    "tarry_throttle_rate": "`max by (destination) (tarry_throttle_rate)`: which destinations are throttled",
    "tarry_throttle_held": "`max by (destination) (tarry_throttle_held / tarry_throttle_rate) > 600`: a throttle "
    "delays messages by more than ten minutes",
    "tarry_breaker_state": "`max by (destination) (tarry_breaker_state) >= 2` for 30 m: a destination is down, see "
    "`tarry breakers`",
    "tarry_breaker_changes": '`sum by (destination) (increase(tarry_breaker_changes_total{to="open"}[1h])) > 5`: it '
    "comes and goes",
    "tarry_events_published": "`sum by (type) (rate(tarry_events_published_total[5m]))`: what happens",
    "tarry_events_lag_seconds": "`max(tarry_events_lag_seconds) > 120`: `tarry status` names what holds them up",
    "tarry_webhook_deliveries": '`increase(tarry_webhook_deliveries_total{outcome!="delivered"}[15m]) > 0`: '
    "`tarry webhooks list` shows why",
    "tarry_webhook_delivery_seconds": "`histogram_quantile(0.99, sum by (le, webhook) "
    "(rate(tarry_webhook_delivery_seconds_bucket[5m]))) > 5`: a slow endpoint",
    "tarry_intake_paused": "`max(tarry_intake_paused) == 1` for 1 h: the intake was not resumed",
    "tarry_degraded": "`max_over_time(tarry_degraded[5m]) == 1`: no Postgres; history waits in the broker",
    "tarry_spans": '`increase(tarry_spans_total{outcome!="sent"}[15m]) > 0`: traces have gaps',
    "tarry_blocked": "`tarry_blocked == 1` for 5 m: the broker has a memory or disk alarm",
    "tarry_consuming": "`sum(tarry_consuming) == 0` for 1 m: no router receives requests",
    "tarry_spooled": "`increase(tarry_spooled[1h]) > 0`: Postgres was unavailable at times",
    "tarry_audit_refused": "`tarry_audit_refused > 0`: the history has a gap; the log says which retry",
    "tarry_policy_info": "`count by (policy) (tarry_policy_info)`: do all routers use the same policies?",
    "tarry_build_info": "`count by (version) (tarry_build_info)`: is a rollout complete?",
}


def metrics_markdown() -> str:
    """The whole page."""
    metrics = Metrics()
    return _HEAD + "".join(_row(metric, metrics) for metric in metrics.registry.collect())


def _row(metric: Metric, metrics: Metrics) -> str:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    labels = ", ".join(f"`{label}`" for label in _labels(metric.name, metrics))
    return f"| `{name}` | {metric.type} | {labels} | {metric.documentation} | {_escaped(_WORTH[metric.name])} |\n"


def _labels(name: str, metrics: Metrics) -> tuple[str, ...]:
    """The labels from the collector: a metric without samples does not show them."""
    family = next((one for one in metrics.registry.collect() if one.name == name), None)
    if isinstance(family, GaugeMetricFamily):
        return tuple(family._labelnames)  # noqa: SLF001 - as below
    for found in vars(metrics).values():
        if getattr(found, "_name", None) == name:
            return tuple(found._labelnames)  # noqa: SLF001 - the library has no other way to ask
    return ()


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
