"""docs/metrics.md, made from the registry itself; a metric that has no entry here is an error."""

from __future__ import annotations

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from tarry.router.metrics import Metrics

_HEAD = """# Metrics

`GET /metrics` on `HTTP_PORT` answers in the Prometheus format. This page is made from the service's own registry by
`make generate`.

Labels stay few, whatever happens: `queue` and `tier` have at most 200 values each and all others share `other`;
`attempt` ends with `11+`. Several routers each count what they did themselves, so sum over them; `retry_queue_depth` is
the same at all of them, so take the maximum.

| metric | type | labels | meaning | an alert, or what to look at |
|---|---|---|---|---|
"""

_WORTH = {
    "retries_scheduled": "`sum by (queue) (rate(retries_scheduled_total[5m]))`: how much fails, and where",
    "retries_executed": '`sum(rate(retries_executed_total{status="unroutable"}[15m])) > 0`: queues are missing',
    "retries_exhausted": "`sum by (queue) (increase(retries_exhausted_total[1h])) > 100`: retries do not help there",
    "retry_queue_depth": "`max(retry_queue_depth) > 100000`: far more waits than usual",
    "tarry_due": "`rate(tarry_due_total[5m])`: retries coming due",
    "tarry_requeued": "`rate(tarry_requeued_total[5m])`: put back to work",
    "tarry_dead": "`increase(tarry_dead_total[1h]) > 0`: somebody has to look at the review queue",
    "tarry_retries": '`tarry_retries_total{kind="manual"}`: how often people step in',
    "tarry_retries_by_attempt": "`rate(tarry_retries_by_attempt_total[1h])`: at which attempt things get well",
    "tarry_not_retryable": "`rate(tarry_not_retryable_total[5m])`: errors that are worth no retry",
    "tarry_reviewed": "`sum by (queue) (increase(tarry_reviewed_total[1h])) > 50`: many messages for few people",
    "tarry_duplicates": "`rate(tarry_duplicates_total[5m]) > 1`: somebody sends requests twice, or routers crash",
    "tarry_stuck": "`increase(tarry_stuck_total[5m]) > 0`: a tier is missing (`returned`) or full (`nacked`)",
    "tarry_detours": "`increase(tarry_detours_total[5m]) > 0`: as above, and the ladder has helped out",
    "tarry_unroutable": "`increase(tarry_unroutable_total[15m]) > 0`: a queue was deleted, or lost its binding",
    "tarry_reconnects": "`increase(tarry_reconnects_total[10m]) > 5`: the way to the broker is shaky",
    "tarry_reloads": '`increase(tarry_reloads_total{outcome="refused"}[10m]) > 0`: a changed file is not in use',
    "tarry_batch_size": "`histogram_quantile(0.5, rate(tarry_batch_size_bucket[5m])) > 400`: at full load",
    "tarry_decision_seconds": "`histogram_quantile(0.99, rate(tarry_decision_seconds_bucket[5m])) > 1`: slow Postgres",
    "tarry_confirm_seconds": "`histogram_quantile(0.99, rate(tarry_confirm_seconds_bucket[5m])) > 1`: slow broker",
    "tarry_drift_seconds": "`histogram_quantile(0.99, sum by (le) (rate(tarry_drift_seconds_bucket[5m]))) > 5`: late",
    "tarry_open": '`max(tarry_open{state="unroutable"}) > 0`: queues are missing; `in_review`: work for people',
    "tarry_overdue": "`max(tarry_overdue) > 0` for 5 m: run `tarry status` and see which tier or queue",
    "tarry_oldest_overdue_seconds": "`max(tarry_oldest_overdue_seconds) > 300`: something is stuck",
    "tarry_missing": "`max(tarry_missing) > 0`: wake somebody; `tarry audit verify` names them, `recover` sends them",
    "tarry_tier_open": "`topk(5, max by (tier) (tarry_tier_open))`: where messages wait",
    "tarry_tier_depth": "`max by (tier) (tarry_tier_depth - tarry_tier_open) > 0` for 15 m: books and broker differ",
    "tarry_attachments": '`max by (state) (tarry_attachments{state!="ok"}) > 0` for 5 m: run `tarry attach --list`',
    "tarry_stalled": "`max by (queue) (tarry_stalled) > 0`: the log names the destination behind it",
    "tarry_presumed": "`rate(tarry_presumed_total[1h])`: successes that no consumer reported",
    "tarry_cancelled": "`increase(tarry_cancelled_total[1h])`: how much people cancel",
    "tarry_postgres_trouble": "`max by (kind) (tarry_postgres_trouble) == 1`: what is wrong with Postgres",
    "tarry_intake_paused": "`max(tarry_intake_paused) == 1` for 1 h: somebody forgot to resume",
    "tarry_degraded": "`max_over_time(tarry_degraded[5m]) == 1`: Postgres is away, and history waits in the broker",
    "tarry_blocked": "`tarry_blocked == 1` for 5 m: the broker has a memory or disk alarm",
    "tarry_consuming": "`sum(tarry_consuming) == 0` for 1 m: nobody takes requests",
    "tarry_spooled": "`increase(tarry_spooled[1h]) > 0`: Postgres was away at times",
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
    """A metric that nothing was counted in yet shows no labels in its samples; the collector knows them."""
    family = next((one for one in metrics.registry.collect() if one.name == name), None)
    if isinstance(family, GaugeMetricFamily):
        return tuple(family._labelnames)  # noqa: SLF001 - as below
    for found in vars(metrics).values():
        if getattr(found, "_name", None) == name:
            return tuple(found._labelnames)  # noqa: SLF001 - the library has no other way to ask
    return ()


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
