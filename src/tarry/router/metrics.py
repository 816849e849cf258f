"""What the service counts. The first four names are the ones that dashboards of the invoice platform already use."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tarry import __version__
from tarry.audit.records import Return
from tarry.audit.trouble import Trouble, kind_of
from tarry.audit.upkeep import Findings
from tarry.core.decide import Review, Schedule
from tarry.core.policy import ErrorClass
from tarry.errors import AuditError
from tarry.router.books import BooksFound
from tarry.router.depth import Depth
from tarry.router.flow import Result
from tarry.router.labels import Labels, attempt
from tarry.router.plans import Plan

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
DRIFT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 30)
SIZES = (1, 5, 20, 50, 100, 200, 500, 1000, 5000)


class Metrics:
    """One registry per service, so that two can live in a process. docs/metrics.md is made from it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.queues, self.tiers = Labels(200), Labels(200)
        count, gauge, spread = self._counter, self._gauge, self._histogram

        self.scheduled = count("retries_scheduled", "Retries put into a tier.", "queue")
        self.executed = count(
            "retries_executed",
            "Retries that came due, by what became of them: `returned` to their queue, or `unroutable`.",
            "queue",
            "status",
        )
        self.exhausted = count(
            "retries_exhausted", "Messages that spent all their retries and went to review.", "queue"
        )
        self.depth = Depth()
        self.registry.register(self.depth)
        self.books = BooksFound()
        self.registry.register(self.books)

        self.due = count("tarry_due", "Retries that came due.", "queue")
        self.requeued = count("tarry_requeued", "Retries that were put back into the queue they failed in.", "queue")
        self.dead = count("tarry_dead", "Messages that will not be retried any more: exhausted or final.", "queue")
        self.kinds = count("tarry_retries", "Retries by what caused them: `automatic` or `manual`.", "kind")
        for kind in ("automatic", "manual"):
            self.kinds.labels(kind)
        self.attempts = count("tarry_retries_by_attempt", "Retries scheduled, by which attempt it is.", "attempt")
        self.not_retryable = count("tarry_not_retryable", "Failures that were classed as final.", "queue")

        self.reviewed = count("tarry_reviewed", "Messages sent to review, for whatever reason.", "queue")
        self.duplicates = count("tarry_duplicates", "Requests that were duplicates, and were dropped.")
        self.stuck = count("tarry_stuck", "Publishes that the broker did not take, to be tried again.", "outcome")
        self.detours = count("tarry_detours", "Retries that their tier did not take, sent by the ladder.", "outcome")
        self.strays = count("tarry_unroutable", "Messages that found no way home, by outcome.", "outcome")
        self.reconnects = count("tarry_reconnects", "Connections lost and opened again, by part.", "part")
        self.reloads = count("tarry_reloads", "Changes of the topology files, by outcome.", "outcome")

        self.batch = spread("tarry_batch_size", "Requests per batch.", SIZES)
        self.decision = spread("tarry_decision_seconds", "From taking up a batch to its last decision.", SECONDS)
        self.confirm = spread("tarry_confirm_seconds", "From a batch's decisions to the broker's last word.", SECONDS)
        self.drift = spread("tarry_drift_seconds", "How long after its due moment a retry came back.", DRIFT, "tier")

        self.presumed = count("tarry_presumed", "Returns that were presumed to be successes after the quiet time.")
        self.cancelled = count("tarry_cancelled", "Retries that were diverted at the cancelled gate.", "queue")
        self.degraded = gauge("tarry_degraded", "1 while Postgres is away and history waits in the broker.")
        self.trouble = gauge("tarry_postgres_trouble", "1 for the kind of trouble that Postgres is in.", "kind")
        self.paused = gauge("tarry_intake_paused", "1 while an operator has paused taking requests.")
        self.blocked = gauge("tarry_blocked", "1 while the broker has an alarm and takes no publishes.")
        self.consuming = gauge("tarry_consuming", "1 while the broker delivers requests to this router.")
        self.spooled = gauge("tarry_spooled", "Records written to the spool since the start.")
        self.refused = gauge("tarry_audit_refused", "Records that Postgres would not take since the start.")
        self.policies = gauge("tarry_policy_info", "1 for each policy in use.", "policy", "max_retries")
        self.build = gauge("tarry_build_info", "The version in use.", "version")
        self.build.labels(__version__).set(1)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def count(self, result: Result) -> None:
        """One batch."""
        self.batch.observe(len(result.acked) + len(result.requeued))
        self.decision.observe(result.decided_s)
        self.confirm.observe(result.confirmed_s)
        self.duplicates.inc(len(result.duplicates))
        # Looking a label up costs more than adding: once for each that the batch has, not for each message.
        for queue, plans in _by_queue(result.moved).items():
            self._count_queue(self.queues(queue), plans)
        for outcome, times in Tally(outcome for _, outcome in result.stuck).items():
            self.stuck.labels(outcome.value).inc(times)
        for outcome, times in Tally(outcome for _, outcome in result.detours).items():
            self.detours.labels(outcome.value).inc(times)

    def _count_queue(self, queue: str, plans: list[Plan]) -> None:
        scheduled = [plan.decision for plan in plans if isinstance(plan.decision, Schedule)]
        reviewed = [plan.decision for plan in plans if isinstance(plan.decision, Review)]
        if scheduled:
            self.scheduled.labels(queue).inc(len(scheduled))
            self.kinds.labels("automatic").inc(len(scheduled))
            for number, times in Tally(attempt(decision.retry_count) for decision in scheduled).items():
                self.attempts.labels(number).inc(times)
        if reviewed:
            self.reviewed.labels(queue).inc(len(reviewed))
            exhausted = sum(decision.exhausted for decision in reviewed)
            final = sum(decision.error_class is ErrorClass.FINAL for decision in reviewed)
            self.exhausted.labels(queue).inc(exhausted)
            self.not_retryable.labels(queue).inc(final)
            self.dead.labels(queue).inc(exhausted + final)

    def count_returns(self, found: Sequence[Return]) -> None:
        """One batch of the tap."""
        for queue, times in Tally(self.queues(one.queue) for one in found).items():
            self.executed.labels(queue, "returned").inc(times)
            self.due.labels(queue).inc(times)
            self.requeued.labels(queue).inc(times)
        for one in found:
            self.drift.labels(self.tiers(one.tier)).observe(max(0, one.at_ms - one.due_ms) / 1000)

    def count_cancelled(self, found: Sequence[Return]) -> None:
        for queue, times in Tally(self.queues(one.queue) for one in found).items():
            self.cancelled.labels(queue).inc(times)

    def count_pass(self, found: Findings | None) -> None:
        """One pass over the books; None if it could not be made."""
        self.books.findings = found
        self.presumed.inc(found.presumed if found else 0)

    def show_trouble(self, trouble: AuditError | None) -> None:
        self.degraded.set(trouble is not None)
        for kind in Trouble:
            self.trouble.labels(kind.value).set(trouble is not None and kind_of(trouble) is kind)

    def count_strays(self, outcome: str, queues: Sequence[str]) -> None:
        self.strays.labels(outcome).inc(len(queues))
        for queue, times in Tally(self.queues(one) for one in queues).items():
            self.executed.labels(queue, "unroutable").inc(times)

    def show_policies(self, policies: dict[str, int]) -> None:
        self.policies.clear()
        for name, most in policies.items():
            self.policies.labels(name, str(most)).set(1)


def _by_queue(plans: Iterable[Plan]) -> dict[str, list[Plan]]:
    found: dict[str, list[Plan]] = {}
    for plan in plans:
        found.setdefault(plan.queue, []).append(plan)
    return found
