"""The alerts on the service's metrics: `make generate` writes them as rules for Prometheus and into docs/metrics.md."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

Severity = Literal["critical", "warning", "info"]
"""`critical`: act now. `warning`: today. `info`: worth knowing."""

RUNBOOK = "docs/operations.md"

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_ranges = re.compile(r"\[(\d+)([smhd])\]")


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule."""

    name: str
    metric: str
    """The metric's name in the registry: a counter without `_total`."""
    expr: str
    summary: str
    section: str
    """The heading of its section in the runbook."""
    severity: Severity = "warning"
    for_s: int = 0
    """Seconds for which the expression must hold."""

    @property
    def runbook(self) -> str:
        return f"{RUNBOOK}#{self.section.lower().replace(' ', '-')}"

    def scaled(self, factor: float) -> str:
        """The expression with all its ranges multiplied."""
        return _ranges.sub(lambda found: f"[{_ms(int(found[1]) * _UNITS[found[2]] * factor)}]", self.expr)


_NOT_READY, _NO_DRAIN, _LATE = "The router is not ready", "A tier does not drain", "Retries are late"
_DOWN, _BREAKER, _REVIEW = "A destination is down", "A breaker is open", "Review grows"
_POSTGRES, _LOST, _STUCK = "Postgres is down", "The broker lost its data", "An attempt is stuck"
_EVENTS, _WEBHOOK, _NO_QUEUE = "Events are late", "A webhook fails", "Returns find no queue"

ALERTS = (
    Alert(
        "TarryNoRouter",
        "tarry_consuming",
        "(sum(tarry_consuming) == 0 unless max(tarry_intake_paused) == 1) or absent(tarry_consuming)",
        "no router receives requests: failed messages wait in the request queue",
        _NOT_READY,
        "critical",
        60,
    ),
    Alert(
        "TarryBrokerAlarm",
        "tarry_blocked",
        "max(tarry_blocked) == 1",
        "the broker has a memory or disk alarm and accepts no publishes",
        _NOT_READY,
        "critical",
        300,
    ),
    Alert(
        "TarryIntakePaused",
        "tarry_intake_paused",
        "max(tarry_intake_paused) == 1",
        "the intake was paused an hour ago and not resumed",
        "Everything must stop for a while",
        for_s=3_600,
    ),
    Alert(
        "TarryConnectionUnstable",
        "tarry_reconnects",
        "sum by (part) (increase(tarry_reconnects_total[10m])) > 5",
        "the connection of {{ $labels.part }} to the broker is lost again and again",
        _NOT_READY,
    ),
    Alert(
        "TarryPublishesRefused",
        "tarry_stuck",
        "sum by (outcome) (increase(tarry_stuck_total[5m])) > 0",
        "the broker does not accept retries ({{ $labels.outcome }}): a tier is missing (returned) or full (nacked)",
        "Publishes are refused",
        "critical",
    ),
    Alert(
        "TarryTierBypassed",
        "tarry_detours",
        "sum by (outcome) (increase(tarry_detours_total[5m])) > 0",
        "a tier is missing (returned) or full (nacked), and the ladder is used instead: {{ $labels.outcome }}",
        "Publishes are refused",
    ),
    Alert(
        "TarryReloadRefused",
        "tarry_reloads",
        'sum(increase(tarry_reloads_total{outcome="refused"}[10m])) > 0',
        "a changed topology file is not in use",
        "A changed policy is not used",
    ),
    Alert(
        "TarryFullLoad",
        "tarry_batch_size",
        "sum(rate(tarry_batch_size_sum[5m])) / sum(rate(tarry_batch_size_count[5m])) > 400",
        "the routers are at full load: most batches are full (500, unless TARRY_BATCH says otherwise)",
        _LATE,
        "info",
        900,
    ),
    Alert(
        "TarryDestinationStalled",
        "tarry_stalled",
        "max by (queue) (tarry_stalled) > 0",
        "messages stay in {{ $labels.queue }} because their destination does not accept them; the log names it",
        _NO_DRAIN,
        "critical",
        120,
    ),
    Alert(
        "TarryOverdue",
        "tarry_overdue",
        "max(tarry_overdue) > 0",
        "retries are past their due time and were not seen to return; `tarry status` shows which tier or queue",
        _LATE,
        for_s=300,
    ),
    Alert(
        "TarryLongOverdue",
        "tarry_oldest_overdue_seconds",
        "max(tarry_oldest_overdue_seconds) > 300",
        "a retry is more than five minutes late",
        _NO_DRAIN,
        "critical",
        60,
    ),
    Alert(
        "TarryDueNotReturned",
        "tarry_due_now",
        "max(tarry_due_now) > 1000",
        "retries come due and do not return; see `tarry status`",
        _LATE,
        for_s=300,
    ),
    Alert(
        "TarryReturnsLate",
        "tarry_drift_seconds",
        "histogram_quantile(0.99, sum by (le) (rate(tarry_drift_seconds_bucket[5m]))) > 5",
        "one in a hundred retries returns more than five seconds late",
        _LATE,
        for_s=300,
    ),
    Alert(
        "TarryManyWait",
        "retry_queue_depth",
        "max(retry_queue_depth) > 100000",
        "far more messages wait than usual",
        _DOWN,
        for_s=600,
    ),
    Alert(
        "TarryThrottleTooLow",
        "tarry_throttle_held",
        "max by (destination) (tarry_throttle_held / tarry_throttle_rate) > 600",
        "the throttle of {{ $labels.destination }} delays messages by more than ten minutes",
        _LATE,
        for_s=300,
    ),
    Alert(
        "TarryExhausted",
        "retries_exhausted",
        "sum by (queue) (increase(retries_exhausted_total[1h])) > 100",
        "retries do not help messages of {{ $labels.queue }}",
        _DOWN,
    ),
    Alert(
        "TarryBreakerOpen",
        "tarry_breaker_state",
        "max by (destination) (tarry_breaker_state) >= 2",
        "{{ $labels.destination }} is down: its breaker has been open for half an hour, see `tarry breakers`",
        _BREAKER,
        for_s=1_800,
    ),
    Alert(
        "TarryBreakerUnsteady",
        "tarry_breaker_changes",
        'sum by (destination) (increase(tarry_breaker_changes_total{to="open"}[1h])) > 5',
        "{{ $labels.destination }} comes and goes: its breaker opens again and again",
        _BREAKER,
    ),
    Alert(
        "TarryUnroutable",
        "tarry_unroutable",
        "sum by (outcome) (increase(tarry_unroutable_total[15m])) > 0",
        "messages were unroutable when they returned: a queue was deleted (review), or had lost its binding (sent_on)",
        _NO_QUEUE,
    ),
    Alert(
        "TarryAttachment",
        "tarry_attachments",
        'max by (state) (tarry_attachments{state!="ok"}) > 0',
        "an attachment is {{ $labels.state }}: rejects may be lost; run `tarry attach --list`",
        "Rejects do not reach tarry",
        "critical",
        300,
    ),
    Alert(
        "TarryReviewGrows",
        "tarry_reviewed",
        "sum by (queue) (increase(tarry_reviewed_total[1h])) > 50",
        "many messages of {{ $labels.queue }} go to review",
        _REVIEW,
    ),
    Alert(
        "TarryLayoverUnreadable",
        "tarry_layovers",
        'sum(increase(tarry_layovers_total{outcome="review"}[1d])) > 0',
        "a message between two legs of a long delay was not readable, and is in review",
        _REVIEW,
    ),
    Alert(
        "TarryStuckAttempts",
        "tarry_stuck_attempts",
        "max(tarry_stuck_attempts) > 0",
        "consumers hang: attempts started and did not end; `tarry stuck` names them",
        _STUCK,
        for_s=2_700,
    ),
    Alert(
        "TarryStuckRecovered",
        "tarry_stuck_recovered",
        "sum by (to) (increase(tarry_stuck_recovered_total[1h])) > 0",
        "consumers hang: their messages were sent to {{ $labels.to }}, and the log says which",
        _STUCK,
        "info",
    ),
    Alert(
        "TarryDuplicates",
        "tarry_duplicates",
        "sum(rate(tarry_duplicates_total[5m])) > 1",
        "requests are sent twice, or routers crash",
        "Duplicates are suspected",
        for_s=300,
    ),
    Alert(
        "TarryMissing",
        "tarry_missing",
        "max(tarry_missing) > 0",
        "the broker does not have open retries; `tarry audit verify` names them, `tarry audit recover` sends them",
        _LOST,
        "critical",
    ),
    Alert(
        "TarryTierDiffers",
        "tarry_tier_depth",
        "max by (tier) (tarry_tier_depth - tarry_tier_open) > 0",
        "{{ $labels.tier }} holds more messages than the audit knows",
        "Duplicates are suspected",
        "info",
        900,
    ),
    Alert(
        "TarryAuditBlind",
        "tarry_open",
        "absent(tarry_open)",
        "no router has completed an audit pass, so no alert on the audit can fire",
        _POSTGRES,
        for_s=900,
    ),
    Alert(
        "TarryDegraded",
        "tarry_degraded",
        "max(tarry_degraded) == 1",
        "Postgres is unavailable: retries continue, and their history waits in the broker",
        _POSTGRES,
        "critical",
        300,
    ),
    Alert(
        "TarryAuditRefused",
        "tarry_audit_refused",
        "max(tarry_audit_refused) > 0",
        "Postgres refused a record, so the history has a gap; the log says which retry",
        _POSTGRES,
    ),
    Alert(
        "TarryBudgetsNotApplied",
        "tarry_budget",
        'sum by (policy) (increase(tarry_budget_total{outcome="unapplied"}[5m])) > 0',
        "the budgets of policy {{ $labels.policy }} are not applied",
        _POSTGRES,
    ),
    Alert(
        "TarrySlowDecisions",
        "tarry_decision_seconds",
        "histogram_quantile(0.99, sum by (le) (rate(tarry_decision_seconds_bucket[5m]))) > 1",
        "batches wait for Postgres, or for an eligibility endpoint",
        _POSTGRES,
        for_s=600,
    ),
    Alert(
        "TarrySlowBroker",
        "tarry_confirm_seconds",
        "histogram_quantile(0.99, sum by (le) (rate(tarry_confirm_seconds_bucket[5m]))) > 1",
        "batches wait for the broker's confirms",
        _LATE,
        for_s=600,
    ),
    Alert(
        "TarryEligibilityUnanswered",
        "tarry_eligibility_requests",
        'sum by (policy) (increase(tarry_eligibility_requests_total{outcome="failed"}[5m])) > 0',
        "the eligibility endpoint of policy {{ $labels.policy }} does not answer",
        "An eligibility endpoint does not answer",
        for_s=300,
    ),
    Alert(
        "TarryEligibilityUnknown",
        "tarry_eligibility_unknown",
        "sum by (policy, treated) (increase(tarry_eligibility_unknown_total[5m])) > 0",
        "on_error of policy {{ $labels.policy }} decides: {{ $labels.treated }}",
        "An eligibility endpoint does not answer",
        for_s=300,
    ),
    Alert(
        "TarryEventsLate",
        "tarry_events_lag_seconds",
        "max(tarry_events_lag_seconds) > 120",
        "events are late; `tarry status` names what holds them up",
        _EVENTS,
        for_s=300,
    ),
    Alert(
        "TarryStatisticsLate",
        "tarry_statistics_lag_seconds",
        "max(tarry_statistics_lag_seconds) > 900",
        "statistics do not have what happened in the last quarter of an hour",
        "Statistics are late",
        "info",
        300,
    ),
    Alert(
        "TarryWebhookFails",
        "tarry_webhook_deliveries",
        'sum by (webhook) (increase(tarry_webhook_deliveries_total{outcome!="delivered"}[15m])) > 0',
        "events cannot be delivered to the webhook {{ $labels.webhook }}; `tarry webhooks list` shows why",
        _WEBHOOK,
        for_s=300,
    ),
    Alert(
        "TarryWebhookSlow",
        "tarry_webhook_delivery_seconds",
        "histogram_quantile(0.99, sum by (le, webhook) (rate(tarry_webhook_delivery_seconds_bucket[5m]))) > 5",
        "the endpoint of the webhook {{ $labels.webhook }} is slow",
        _WEBHOOK,
        for_s=600,
    ),
    Alert(
        "TarrySpansLost",
        "tarry_spans",
        'sum by (outcome) (increase(tarry_spans_total{outcome!="sent"}[15m])) > 0',
        "spans were {{ $labels.outcome }}: traces have gaps",
        "Traces have gaps",
        "info",
    ),
)


def alerts_of(metric: str) -> list[Alert]:
    """The alerts on a metric, by its name in the registry."""
    return [alert for alert in ALERTS if alert.metric == metric]


def rules_text(factor: float = 1.0) -> str:
    """deploy/prometheus/tarry.rules.yml. A test multiplies all times by a factor: it cannot wait for hours."""
    lines = [
        "# Written by `make generate` from src/tarry/service/alerts.py.",
        "groups:",
        "  - name: tarry",
        "    rules:",
    ]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.scaled(factor) if factor != 1 else alert.expr)}",
            *([f"        for: {_ms(alert.for_s * factor)}"] if alert.for_s else []),
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {json.dumps('tarry: ' + alert.summary)}",
            f"          runbook_url: {json.dumps(alert.runbook)}",
        ]
    return "\n".join(lines) + "\n"


def _ms(seconds: float) -> str:
    """The largest unit that is exact, down to milliseconds."""
    for unit, size in reversed(_UNITS.items()):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{round(seconds * 1_000)}ms"
