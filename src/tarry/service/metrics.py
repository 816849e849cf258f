"""Prometheus metrics of the service, with a limit on label values: a thousand queues must not inflate the scrape."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tarry import __version__
from tarry.amqp.publisher import PublishOutcome
from tarry.attach.listing import AttachmentState
from tarry.audit.anomalies import AnomalyNow
from tarry.audit.maintenance import AuditFindings
from tarry.contract.message import Request
from tarry.core.breaker import BreakerState
from tarry.core.decide import Review, Schedule, Skip
from tarry.core.policy import ErrorClass, Policy
from tarry.errors import AuditError
from tarry.events.cloudevent import Event
from tarry.events.lag import EventsStatus
from tarry.events.webhooks import DeliveryOutcome
from tarry.operations.paused_destination import PausedDestination
from tarry.router.pipeline import Result
from tarry.router.plan import RoutePlan
from tarry.service.depth import DepthCollector
from tarry.store.errors import Trouble, kind_of
from tarry.store.rows import RecordedCancel, RecordedReturn, Return, SkippedWhenDue, Success

OTHER = "other"
LAST_ATTEMPT = 10


class Labels:
    """Limits label values: the first `most` values keep their names; the rest share one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        if value not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(value)
        return value


def attempt(number: int) -> str:
    """`1` … `10`, then `11+`."""
    return str(number) if number <= LAST_ATTEMPT else f"{LAST_ATTEMPT + 1}+"


ABSENT = "; absent if the last audit pass failed."
NOTHING: tuple[Mapping[str, float], ...] = ({}, {}, {}, {})
UNKNOWN = (None, None, None, None)


class AuditMetrics(Collector):
    """Metrics of the last audit pass. Every router shows the same numbers: take the maximum, not the sum."""

    def __init__(self) -> None:
        self.findings: AuditFindings | None = None

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        found = self.findings
        states, open_, depths, stalled = (
            (_states(found), _known(found), _filled(found), _stalled(found)) if found else NOTHING
        )
        due, late, oldest, missing = (
            (found.counts.due, found.counts.overdue, found.oldest_overdue_s, found.missing) if found else UNKNOWN
        )
        yield _family("tarry_open", "Retries by state", "state", states)
        yield _single("tarry_due_now", "Retries past their due time that are not back in their queue", due)
        yield _single("tarry_overdue", "Retries past their due time and not seen to return", late)
        yield _single("tarry_oldest_overdue_seconds", "How late the most overdue retry is", oldest)
        yield _single(
            "tarry_missing", "Open retries that the broker does not have, in two consecutive audit passes", missing
        )
        stuck = found.stuck if found else None
        yield _single("tarry_stuck_attempts", "Attempts without an outcome for longer than their limit", stuck)
        yield _family("tarry_tier_open", "Retries in a tier according to the audit", "tier", open_)
        yield _family("tarry_tier_depth", "Messages in a tier on the broker", "tier", depths)
        attached = _attached(found) if found else {}
        yield _family("tarry_attachments", "Attached queues and exchanges, by state", "state", attached)
        progress = found.statistics if found else None
        behind = progress.lag.total_seconds() if progress else None
        yield _single("tarry_statistics_lag_seconds", "How far statistics are behind the history", behind)
        yield _family("tarry_stalled", "Messages in a queue whose destination does not accept them", "queue", stalled)
        yield _anomalies(found.anomalies if found else ())

    @property
    def troubles(self) -> list[str]:
        """Whether statistics are late, in words."""
        progress = self.findings.statistics if self.findings else None
        found = progress.late(progress.counted_until + progress.lag) if progress else None
        return [f"statistics are behind: {found}"] if found else []


def _states(found: AuditFindings) -> dict[str, float]:
    counts = found.counts
    return {
        "claimed": counts.claimed,
        "scheduled": counts.waiting,
        "held": counts.held,
        "unroutable": counts.unroutable,
        "in_review": counts.in_review,
    }


def _filled(found: AuditFindings) -> dict[str, int]:
    """Leaves out empty tiers without open retries: ladder tiers are many and mostly empty."""
    return {tier: depth for tier, depth in found.depth_by_tier.items() if depth or tier in found.open_by_tier}


def _known(found: AuditFindings) -> dict[str, int]:
    """With a zero for each tier that only the broker has messages in: a difference needs both numbers."""
    return {**dict.fromkeys(_filled(found), 0), **found.open_by_tier}


def _stalled(found: AuditFindings) -> dict[str, int]:
    """The fullest by name: each destination may have a stalled relay of its own."""
    fullest = sorted(found.stalled, key=lambda stall: stall.messages, reverse=True)
    named = {stall.queue: stall.messages for stall in fullest[:MOST_STALLED]}
    more = sum(stall.messages for stall in fullest[MOST_STALLED:])
    return named | ({OTHER: more} if more else {})


def _attached(found: AuditFindings) -> dict[str, int]:
    if found.attachments is None:
        return {}
    return {str(state): sum(one.state is state for one in found.attachments) for state in AttachmentState}


def _single(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text + ABSENT)
    if value is not None:
        family.add_metric([], value)
    return family


def _family(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text + ABSENT, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


MOST_STALLED = 100
"""Queues that have a label of their own: the fullest."""

MOST_ANOMALIES = 100
"""That have a label of their own: the oldest."""


def _anomalies(found: Sequence[AnomalyNow]) -> GaugeMetricFamily:
    text = "The share of returns that fail again, of each queue or policy where it is far above the usual one"
    family = GaugeMetricFamily("tarry_anomaly", text + ABSENT, labels=["kind", "name"])
    for one in found[:MOST_ANOMALIES]:
        family.add_metric([str(one.kind), one.name], one.rate)
    return family


_BREAKER_STATES = (BreakerState.CLOSED, BreakerState.CLOSING, BreakerState.HALF_OPEN, BreakerState.OPEN)
"""In the order of their numbers."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
DRIFT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 30)
SIZES = (1, 5, 20, 50, 100, 200, 500, 1000, 5000)


class Metrics:
    """One registry per service, so that two services can run in a process. docs/metrics.md is generated from it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.queues, self.tiers = Labels(200), Labels(200)
        count, gauge, spread = self._counter, self._gauge, self._histogram

        self.scheduled = count("retries_scheduled", "Retries published to a tier.", "queue")
        self.executed = count(
            "retries_executed",
            "Retries by result, counted twice. When they come due: `returned` towards their queue, `unroutable` if the "
            "queue does not exist. When the outcome is known: `success` if the consumer reported it, `presumed` if no "
            "failure followed within TARRY_PRESUME_AFTER, `failed` if it failed again.",
            "queue",
            "status",
        )
        self.exhausted = count("retries_exhausted", "Messages that used all their retries and went to review.", "queue")
        self.skipped = count(
            "retries_skipped", "Retries that a rule of their policy ended: the message is not wanted any more.", "queue"
        )
        self.depth = DepthCollector()
        self.registry.register(self.depth)
        self.audit = AuditMetrics()
        self.registry.register(self.audit)

        self.due = count(
            "tarry_due",
            "Retries whose wait is over, each round once: requeued, cancelled, held by a pause, or unroutable.",
            "queue",
        )
        self.requeued = count(
            "tarry_requeued",
            "Retries that reached the queue they failed in; counted 10 s later, when it is known that none of them was "
            "unroutable.",
            "queue",
        )
        self.dead = count("tarry_dead", "Messages that will not be retried again: exhausted or final.", "queue")
        self.kinds = count(
            "tarry_retries",
            "Retries by cause: `automatic`, when they are scheduled; `manual`, when one that a person asked for (by "
            "retry-now, redrive or resume) returns.",
            "kind",
        )
        self.attempts = count("tarry_retries_by_attempt", "Retries scheduled, by which attempt it is.", "attempt")
        self.outcomes = count(
            "tarry_outcomes_by_attempt",
            "Outcomes of retries, by which attempt it was: `success`, `presumed` or `failed`, as in "
            "`retries_executed_total`.",
            "attempt",
            "outcome",
        )
        self.not_retryable = count("tarry_not_retryable", "Failures that were classified as final.", "queue")

        self.reviewed = count("tarry_reviewed", "Messages sent to review, for any reason.", "queue")
        self.duplicates = count("tarry_duplicates", "Duplicate requests, which were dropped.")
        self.stuck = count("tarry_stuck", "Publishes that the broker did not accept; they are tried again.", "outcome")
        self.detours = count(
            "tarry_detours", "Retries that their tier did not accept, sent through the ladder.", "outcome"
        )
        self.unroutable = count("tarry_unroutable", "Unroutable messages, by outcome.", "outcome")
        self.layovers = count(
            "tarry_layovers",
            "Messages between two legs of a delay that is longer than the ladder holds: `sent` on the next leg, "
            "`duplicate` (dropped, its next leg was sent before) or `review`.",
            "outcome",
        )
        self.reconnects = count("tarry_reconnects", "Connections lost and opened again, by part.", "part")
        self.reloads = count("tarry_reloads", "Changes of the topology files, by outcome.", "outcome")

        self._add_guards()
        self._add_traces()
        self.batch = spread("tarry_batch_size", "Requests per batch.", SIZES)
        self.decision = spread("tarry_decision_seconds", "Time from receiving a batch to its last decision.", SECONDS)
        self.confirm = spread(
            "tarry_confirm_seconds", "Time from the last decision of a batch to its last confirm.", SECONDS
        )
        self.drift = spread("tarry_drift_seconds", "Time from the due time of a retry to its return.", DRIFT, "tier")

        self.presumed = count("tarry_presumed", "Returns presumed successful after the quiet time.")
        self.stuck_recovered = count(
            "tarry_stuck_recovered", "Stuck attempts that were recovered: sent to their `queue` or to `review`.", "to"
        )
        self.cancelled = count("tarry_cancelled", "Retries that were diverted at the cancelled gate.", "queue")
        self.degraded = gauge("tarry_degraded", "1 while Postgres is unavailable and history waits in the broker.")
        self.trouble = gauge("tarry_postgres_trouble", "1 for the kind of problem that Postgres has.", "kind")
        self.paused = gauge("tarry_intake_paused", "1 while an operator has paused the intake.")
        self.throttle = gauge(
            "tarry_throttle_rate",
            "The most returns a second to a throttled destination; shown by the router that releases them.",
            "destination",
        )
        self.throttle_held = gauge(
            "tarry_throttle_held",
            "Retries that wait because their destination is throttled; shown by the router that releases them.",
            "destination",
        )
        self.breakers, self.breaker_changes = (
            gauge(
                "tarry_breaker_state",
                "The state of each breaker that has been open: 0 closed, 1 closing, 2 half-open, 3 open; shown by the "
                "router that opens and closes them.",
                "destination",
            ),
            count(
                "tarry_breaker_changes", "Changes of breakers by the service, by the new state.", "destination", "to"
            ),
        )
        self.events, self.events_lag, self.webhook_deliveries, self.webhook_seconds = self._of_events()
        self.blocked, self.consuming = (
            gauge("tarry_blocked", "1 while the broker has an alarm and accepts no publishes."),
            gauge("tarry_consuming", "1 while the broker delivers requests to this router."),
        )
        self.spooled = gauge("tarry_spooled", "Records written to the spool since the start.")
        self.refused = gauge("tarry_audit_refused", "Records that Postgres refused since the start.")
        self.policies = gauge("tarry_policy_info", "1 for each policy in use.", "policy", "max_retries")
        self.build = gauge("tarry_build_info", "The version in use.", "version")
        self.build.labels(__version__).set(1)
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Shows label values before they are counted: an alert on an increase would miss the first one."""
        refusals = [outcome.value for outcome in PublishOutcome if outcome is not PublishOutcome.CONFIRMED]
        for counter, values in (
            (self.kinds, ("automatic", "manual")),
            (self.stuck, refusals),
            (self.detours, ("returned", "nacked")),
            (self.unroutable, ("review", "sent_on")),
            (self.layovers, ("sent", "duplicate", "review")),
            (self.reloads, ("used", "refused")),
            (self.stuck_recovered, ("queue", "review")),
            (self.spans, ("sent", "failed", "dropped")),
        ):
            for value in values:
                counter.labels(value)

    def _add_guards(self) -> None:
        count = self._counter
        self.eligibility_requests = count(
            "tarry_eligibility_requests",
            "Requests to eligibility endpoints: `answered` or `failed`.",
            "policy",
            "outcome",
        )
        self.eligibility_unknown = count(
            "tarry_eligibility_unknown",
            "Messages about which an eligibility endpoint gave no answer, and what on_error made of them: `allow` or "
            "`skip`.",
            "policy",
            "treated",
        )

        self.budgets = count(
            "tarry_budget",
            "Retries for which a budget of their policy had no room: `defer`, `review` or `skip`; and those that were "
            "not charged because Postgres did not answer: `unapplied`.",
            "policy",
            "outcome",
        )
        self.adaptive = count(
            "tarry_adaptive",
            "Messages with an error that is given up: `given_up`, sent to review at once, or `tried`, retried all the "
            "same.",
            "policy",
            "outcome",
        )
        self.checked = count(
            "tarry_checked",
            "Messages that were due and that this router asked about: `returned` or `skipped`.",
            "policy",
            "outcome",
        )

    def _add_traces(self) -> None:
        text = "Spans of sampled messages: `sent` to the collector, `failed` to be sent, `dropped` from a full queue."
        self.spans = self._counter("tarry_spans", text, "outcome")

    def _of_events(self) -> tuple[Counter, Gauge, Counter, Histogram]:
        text = "Time since the oldest step was recorded whose event is not published; 0 if all are, or events are off."
        lag = self._gauge("tarry_events_lag_seconds", text)
        published = self._counter("tarry_events_published", "Events that the broker has confirmed, by type.", "type")
        text = "Attempts to deliver an event to a webhook: `delivered`, `failed` (it is retried), `refused` or `gone`."
        took = "How long an attempt took, from the lookup of the name to the answer."
        deliveries = self._counter("tarry_webhook_deliveries", text, "webhook", "outcome")
        return published, lag, deliveries, self._histogram("tarry_webhook_delivery_seconds", took, SECONDS, "webhook")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def count(self, result: Result) -> None:
        """Counts one batch."""
        self.batch.observe(len(result.acked) + len(result.requeued))
        self.decision.observe(result.decided_s)
        self.confirm.observe(result.confirmed_s)
        self.duplicates.inc(len(result.duplicates))
        # Looking up a label costs more than adding: do it once per label in the batch, not once per message.
        for label, plans in self._by_label(result.moved).items():
            self._count_queue(label, plans)
        for (policy, over), times in Tally(_over_budget(result.moved)).items():
            self.budgets.labels(policy, over).inc(times)
        for (policy, became), times in Tally(_by_history(result.moved)).items():
            self.adaptive.labels(policy, became).inc(times)
        for outcome, times in Tally(outcome for _, outcome in result.stuck).items():
            self.stuck.labels(outcome.value).inc(times)
        for outcome, times in Tally(outcome for _, outcome in result.detours).items():
            self.detours.labels(outcome.value).inc(times)

    def _by_label(self, plans: Iterable[RoutePlan]) -> dict[str, list[RoutePlan]]:
        """Those of most queues share one, if there are thousands."""
        found: dict[str, list[RoutePlan]] = {}
        for plan in plans:
            found.setdefault(self.queues(plan.queue), []).append(plan)
        return found

    def _count_queue(self, queue: str, plans: list[RoutePlan]) -> None:
        self._count_outcomes("failed", queue, list(_failed_attempts(plans)))
        scheduled = [plan.decision for plan in plans if isinstance(plan.decision, Schedule)]
        reviewed = [plan.decision for plan in plans if isinstance(plan.decision, Review)]
        if scheduled:
            self.scheduled.labels(queue).inc(len(scheduled))
            self.kinds.labels("automatic").inc(len(scheduled))
            for number, times in Tally(attempt(decision.retry_count) for decision in scheduled).items():
                self.attempts.labels(number).inc(times)
        if skipped := sum(isinstance(plan.decision, Skip) for plan in plans):
            self.skipped.labels(queue).inc(skipped)
        if reviewed:
            self.reviewed.labels(queue).inc(len(reviewed))
            exhausted = sum(decision.exhausted for decision in reviewed)
            final = sum(decision.error_class is ErrorClass.FINAL for decision in reviewed)
            self.exhausted.labels(queue).inc(exhausted)
            self.not_retryable.labels(queue).inc(final)
            self.dead.labels(queue).inc(exhausted + final)

    def count_eligibility_request(self, policy: str, outcome: str, number: int) -> None:
        self.eligibility_requests.labels(policy, outcome).inc(number)

    def count_eligibility_unknown(self, policy: str, treated: str, number: int) -> None:
        self.eligibility_unknown.labels(policy, treated).inc(number)

    def count_budget_unapplied(self, policy: str, number: int) -> None:
        self.budgets.labels(policy, "unapplied").inc(number)

    def count_checked(self, policy: str, outcome: str, number: int) -> None:
        self.checked.labels(policy, outcome).inc(number)

    def count_returns(self, found: Sequence[RecordedReturn]) -> None:
        """Counts one batch of the tap."""
        for queue, times in Tally(self.queues(one.seen.queue) for one in found).items():
            self.executed.labels(queue, "returned").inc(times)
        self._count_due(one.seen.queue for one in found if one.comes_due)
        self.kinds.labels("manual").inc(sum(one.by_person for one in found))
        for seen in (one.seen for one in found):
            self.drift.labels(self.tiers(seen.tier)).observe(max(0, seen.at_ms - seen.due_ms) / 1000)

    def count_requeued(self, found: Sequence[Return]) -> None:
        for queue, times in Tally(self.queues(one.queue) for one in found).items():
            self.requeued.labels(queue).inc(times)

    def count_cancelled(self, found: Sequence[RecordedCancel]) -> None:
        for queue, times in Tally(self.queues(one.seen.queue) for one in found).items():
            self.cancelled.labels(queue).inc(times)
        self._count_due(one.seen.queue for one in found if one.comes_due)

    def count_skips(self, found: Sequence[SkippedWhenDue]) -> None:
        """Counts messages that were skipped when they were due."""
        for queue, times in Tally(self.queues(one.queue) for one in found).items():
            self.skipped.labels(queue).inc(times)
        self._count_due(one.queue for one in found if one.comes_due)

    def count_held(self, queues: Sequence[str]) -> None:
        """Counts retries that came due and are held."""
        self._count_due(queues)

    def show_paused(self, found: Sequence[PausedDestination]) -> None:
        """Shows what is throttled now; those that share a label as their sum."""
        self.throttle.clear()
        self.throttle_held.clear()
        for one in found:
            if one.throttle is not None:
                self.throttle.labels(self.queues(one.label)).inc(one.throttle)
                if one.held is not None:
                    self.throttle_held.labels(self.queues(one.label)).inc(one.held)

    def show_breakers(self, found: Mapping[str, BreakerState]) -> None:
        """Those that share a label as the most open of them."""
        self.breakers.clear()
        highest: dict[str, int] = {}
        for destination, state in found.items():
            label = self.queues(destination)
            highest[label] = max(highest.get(label, 0), _BREAKER_STATES.index(state))
        for label, number in highest.items():
            self.breakers.labels(label).set(number)

    def count_breaker_change(self, destination: str, state: BreakerState) -> None:
        self.breaker_changes.labels(self.queues(destination), str(state)).inc()

    def _count_due(self, queues: Iterable[str]) -> None:
        for queue, times in Tally(map(self.queues, queues)).items():
            self.due.labels(queue).inc(times)

    def count_successes(self, found: Sequence[Success]) -> None:
        for presumed, status in ((False, "success"), (True, "presumed")):
            by_queue: dict[str, list[int]] = {}
            for one in found:
                if one.presumed is presumed:
                    by_queue.setdefault(self.queues(one.queue), []).append(one.attempt)
            for queue, attempts in by_queue.items():
                self._count_outcomes(status, queue, attempts)

    def _count_outcomes(self, status: str, queue: str, attempts: Sequence[int]) -> None:
        if attempts:
            self.executed.labels(queue, status).inc(len(attempts))
        for number, times in Tally(map(attempt, attempts)).items():
            self.outcomes.labels(number, status).inc(times)

    def count_pass(self, found: AuditFindings | None) -> None:
        """Counts one audit pass; None if it could not be made."""
        self.audit.findings = found
        self.presumed.inc(len(found.presumed) if found else 0)
        for to, times in (found.stuck_recovered if found else {}).items():
            self.stuck_recovered.labels(to).inc(times)

    def show_trouble(self, trouble: AuditError | None) -> None:
        self.degraded.set(trouble is not None)
        for kind in Trouble:
            self.trouble.labels(kind.value).set(trouble is not None and kind_of(trouble) is kind)

    def count_unroutable(self, outcome: str, queues: Sequence[str]) -> None:
        self.unroutable.labels(outcome).inc(len(queues))
        for queue, times in Tally(self.queues(one) for one in queues).items():
            self.executed.labels(queue, "unroutable").inc(times)

    def count_layovers(self, outcome: str, times: int) -> None:
        self.layovers.labels(outcome).inc(times)

    def count_events(self, found: Sequence[Event]) -> None:
        for kind, times in Tally(one.word for one in found).items():
            self.events.labels(kind).inc(times)

    def show_events(self, status: EventsStatus | None) -> None:
        self.events_lag.set(status.lag_s if status else 0)

    def count_webhook_delivery(self, webhook: str, outcome: str, seconds: float) -> None:
        self.webhook_deliveries.labels(webhook, outcome).inc()
        self.webhook_seconds.labels(webhook).observe(seconds)

    def count_spans(self, outcome: str, number: int) -> None:
        self.spans.labels(outcome).inc(number)

    def show_policies(self, policies: Iterable[Policy]) -> None:
        """Shows the policies in use, and what is counted for them from zero on, as in `_begin_at_zero`."""
        self.policies.clear()
        for policy in policies:
            self.policies.labels(policy.name, str(policy.max_retries)).set(1)
            for outcome in {*(one.over.value for one in policy.budgets), *(["unapplied"] if policy.budgets else [])}:
                self.budgets.labels(policy.name, outcome)
            if policy.eligibility is not None and policy.eligibility.has_endpoint:
                for outcome in ("answered", "failed"):
                    self.eligibility_requests.labels(policy.name, outcome)
                self.eligibility_unknown.labels(policy.name, policy.eligibility.on_error.value)

    def show_webhooks(self, names: Iterable[str]) -> None:
        """Shows the webhooks in use before something is delivered, as in `_begin_at_zero`."""
        for name in names:
            for outcome in DeliveryOutcome:
                self.webhook_deliveries.labels(name, outcome.value)


def _over_budget(plans: Iterable[RoutePlan]) -> Iterator[tuple[str, str]]:
    """Policy and outcome of what a budget had no room for."""
    for decision in (plan.decision for plan in plans):
        if decision.budget is not None and decision.policy is not None:
            became = "defer" if isinstance(decision, Schedule) else "skip" if isinstance(decision, Skip) else "review"
            yield decision.policy.name, became


def _by_history(plans: Iterable[RoutePlan]) -> Iterator[tuple[str, str]]:
    """Policy and outcome of what has an error that is given up."""
    for decision in (plan.decision for plan in plans):
        if isinstance(decision, Schedule) and decision.tried is not None:
            yield decision.policy.name, "tried"
        elif isinstance(decision, Review) and decision.given_up and decision.policy is not None:
            yield decision.policy.name, "given_up"


def _failed_attempts(plans: Iterable[RoutePlan]) -> Iterator[int]:
    """For each message that has failed before, returned, and failed again: which attempt that was."""
    for plan in plans:
        if isinstance(plan.item, Request) and plan.item.failure.round:
            yield plan.item.failure.retry_count
