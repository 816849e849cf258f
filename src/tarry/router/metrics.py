"""What the service counts. The first four names are the ones that dashboards of the invoice platform already use."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tarry import __version__
from tarry.audit.records import Return
from tarry.core.decide import Review, Schedule
from tarry.router.flow import Result
from tarry.router.plans import Plan

MOST_QUEUES = 200
"""Distinct queue labels; the rest share one, so that a thousand queues do not blow up the scrape."""

OTHER = "other"


class Metrics:
    """One registry per service, so that two can live in a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._queues: set[str] = set()
        self.scheduled = self._counter("retries_scheduled", "Retries put into a tier.", "queue")
        self.executed = self._counter("retries_executed", "Retries that came back to their queue.", "queue", "status")
        self.exhausted = self._counter("retries_exhausted", "Messages that spent all their retries.", "queue")
        self.depth = Gauge("retry_queue_depth", "Messages waiting in tiers.", registry=self.registry)
        self.reviewed = self._counter("tarry_reviewed", "Messages sent to review.", "queue")
        self.duplicates = self._counter("tarry_duplicates", "Requests that were duplicates.")
        self.stuck = self._counter("tarry_stuck", "Publishes that the broker did not take.", "outcome")
        self.reconnects = self._counter("tarry_reconnects", "Connections opened again.", "part")
        self.degraded = Gauge("tarry_degraded", "1 while Postgres is away.", registry=self.registry)
        self.batch = Histogram(
            "tarry_batch_size", "Requests per batch.", buckets=(1, 5, 20, 50, 100, 200, 500), registry=self.registry
        )
        self.batch_seconds = Histogram(
            "tarry_batch_seconds", "From delivery to ack of a batch.", registry=self.registry
        )
        self.drift = Histogram(
            "tarry_drift_seconds",
            "How long after its due moment a retry came back.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 30),
            registry=self.registry,
        )
        Gauge("tarry_build_info", "Version in use.", ["version"], registry=self.registry).labels(__version__).set(1)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def queue(self, name: str) -> str:
        """The label for a queue."""
        if name not in self._queues:
            if len(self._queues) >= MOST_QUEUES:
                return OTHER
            self._queues.add(name)
        return name

    def count(self, result: Result, seconds: float) -> None:
        """One batch."""
        self.batch.observe(len(result.acked) + len(result.requeued))
        self.batch_seconds.observe(seconds)
        self.duplicates.inc(len(result.duplicates))
        for plan in result.moved:
            self._count_moved(plan)
        for _, outcome in result.stuck:
            self.stuck.labels(outcome.value).inc()

    def _count_moved(self, plan: Plan) -> None:
        queue = self.queue(plan.queue)
        decision = plan.decision
        if isinstance(decision, Schedule):
            self.scheduled.labels(queue).inc()
        elif isinstance(decision, Review):
            self.reviewed.labels(queue).inc()
            if decision.exhausted:
                self.exhausted.labels(queue).inc()

    def count_return(self, found: Return) -> None:
        self.executed.labels(self.queue(found.queue), "returned").inc()
        self.drift.observe(max(0, found.at_ms - found.due_ms) / 1000)
