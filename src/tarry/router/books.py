"""What the pass over the books found, as metrics: absent, rather than wrong, while nobody can tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tarry.attach.listing import State
from tarry.audit.upkeep import Findings

ABSENT = "; absent while the last pass over the books could not be made."
NOTHING: tuple[Mapping[str, float], ...] = ({}, {}, {}, {})
UNKNOWN = (None, None, None)


class BooksFound(Collector):
    """Every router shows the same numbers: take the maximum, not the sum."""

    def __init__(self) -> None:
        self.findings: Findings | None = None

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        found = self.findings
        states, open_, depths, stalled = (
            (_states(found), found.open_by_tier, _filled(found), _stalled(found)) if found else NOTHING
        )
        late, oldest, missing = (found.counts.overdue, found.oldest_overdue_s, found.missing) if found else UNKNOWN
        yield _family("tarry_open", "Retries by where they stand", "state", states)
        yield _single("tarry_overdue", "Retries past their due moment and not seen to return", late)
        yield _single("tarry_oldest_overdue_seconds", "How late the latest of them is", oldest)
        yield _single("tarry_missing", "Open retries that the broker does not have, at two looks in a row", missing)
        yield _family("tarry_tier_open", "Retries in a tier by the books", "tier", open_)
        yield _family("tarry_tier_depth", "Messages in a tier on the broker", "tier", depths)
        attached = _attached(found) if found else {}
        yield _family("tarry_attachments", "Attached queues and exchanges, by state", "state", attached)
        yield _family("tarry_stalled", "Messages in a queue whose destination does not take them", "queue", stalled)


def _states(found: Findings) -> dict[str, float]:
    counts = found.counts
    return {
        "claimed": counts.claimed,
        "scheduled": counts.waiting,
        "held": counts.held,
        "unroutable": counts.unroutable,
        "in_review": counts.in_review,
    }


def _filled(found: Findings) -> dict[str, int]:
    """Ladder tiers are many and mostly empty."""
    return {tier: depth for tier, depth in found.depth_by_tier.items() if depth or tier in found.open_by_tier}


def _stalled(found: Findings) -> dict[str, int]:
    return {stall.queue: stall.messages for stall in found.stalled}


def _attached(found: Findings) -> dict[str, int]:
    if found.attachments is None:
        return {}
    return {str(state): sum(one.state is state for one in found.attachments) for state in State}


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
