"""What `tarry explain` prints: lines for people, data for --json, and a policy's schedule as a timeline."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from tarry.cli.explained import Explanation
from tarry.cli.output import line, print_table, table
from tarry.cli.topology_view import topology_json
from tarry.core.decide import Schedule
from tarry.core.durations import humanise
from tarry.core.ladder import Itinerary, Ladder
from tarry.core.names import Names
from tarry.core.policy import Policy
from tarry.topology.model import Topology

WIDTH = 48
"""Characters of a timeline."""


def explanation_json(found: Explanation, topology: Topology) -> dict[str, Any]:
    ends = [one for one in (found.earliest, found.latest) if one is not None]
    return {
        "outcome": "review" if found.review is not None else "schedule",
        "reason": found.review,
        "form": found.form,
        "queue": found.failure.queue if found.failure else None,
        "policy": found.policy,
        "policy_why": found.policy_why,
        "class": found.error_class,
        "class_why": found.class_why,
        "retry_count": ends[0].retry_count if ends else None,
        "max_retries": ends[0].max_retries if ends else None,
        "delay_ms": [one.itinerary.delay_ms for one in ends],
        "delay_why": found.delay_why,
        "itinerary": [list(queues(one.itinerary, topology.broker_names, topology.ladder_shape)) for one in ends],
        "due": [_moment(one.due_ms) for one in ends],
        "returns_to": found.returns_to,
        "topology": topology_json(topology),
    }


def print_explanation(found: Explanation, topology: Topology) -> None:
    for name, text in _lines(found, topology):
        line(f"{name:<11}{text}")


def _lines(found: Explanation, topology: Topology) -> Iterator[tuple[str, str]]:
    first, last = found.earliest, found.latest
    if found.failure is not None:
        yield "queue", f"{found.failure.queue} (read from: {found.form})"
        yield "policy", f"{found.policy or 'none'}: {found.policy_why}"
        yield "class", f"{found.error_class or 'not known'}: {found.class_why}"
    if first is None or last is None:
        yield "outcome", f"review, in {topology.names.review}: {found.review}"
        return
    spent = found.failure is not None and first.retry_count > found.failure.retry_count
    yield "outcome", f"retry {first.retry_count} of {first.max_retries}" if spent else "a retry that spends no attempt"
    yield "delay", f"{_range(first.itinerary.delay_ms, last.itinerary.delay_ms)}: {found.delay_why}"
    yield "waits in", _itinerary(first, topology)
    if last.itinerary != first.itinerary:
        yield "", f"{_itinerary(last, topology)} (with the most jitter)"
    yield "due", " to ".join(dict.fromkeys((_moment(first.due_ms), _moment(last.due_ms))))
    yield "returns to", found.returns_to or ""


def _itinerary(decision: Schedule, topology: Topology) -> str:
    found = list(queues(decision.itinerary, topology.broker_names, topology.ladder_shape))
    return ", then ".join(found) if found else "no tier: it goes straight on"


def queues(way: Itinerary, names: Names, ladder: Ladder) -> Iterator[str]:
    """Every queue that a message waits in."""
    if way.tier_ms is not None:
        yield names.tier(way.tier_ms)
    top = len(way.digits) - 1
    for place, digit in enumerate(way.digits):
        if digit:
            yield names.ladder_tier(top - place, ladder.ttl(top - place, digit))


def _range(least: int, most: int) -> str:
    return humanise(least) if least == most else f"{humanise(least)} to {humanise(most)}"


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def schedule_json(policy: Policy) -> dict[str, Any]:
    return {
        "policy": policy.name,
        "match": policy.match.model_dump(exclude_none=True),
        "max_retries": policy.max_retries,
        "max_retries_ceiling": policy.ceiling,
        "retries": [
            {"retry": number, "delay_ms": delay, "longest_jitter_ms": policy.longest_jitter(delay), "after_ms": after}
            for number, delay, after in _retries(policy)
        ],
    }


def print_schedule(policy: Policy, review: str) -> None:
    """One bar for each retry, where it lies between the first failure and the last return."""
    match = ", ".join(f"{name} {glob}" for name, glob in policy.match.model_dump(exclude_none=True).items())
    made = table(f"{policy.name}: {match}", "retry", "waits", "back after", "", right=("retry",))
    retries = list(_retries(policy))
    total = max((after for _, _, after in retries), default=1) or 1
    for number, delay, after in retries:
        waits = _range(delay, delay + policy.longest_jitter(delay))
        made.add_row(str(number), waits, humanise(after), _bar(after - delay, after, total))
    made.add_row("", "", "", f"then {review}")
    print_table(made)
    if policy.ceiling > policy.max_retries:
        line(f"A request may ask for up to {policy.ceiling} retries.")


def _retries(policy: Policy) -> Iterator[tuple[int, int, int]]:
    """Number, delay and time since the first failure, jitter aside."""
    after = 0
    for count in range(policy.max_retries):
        delay = policy.delay(count)
        after += delay
        yield count + 1, delay, after


def _bar(start: int, end: int, total: int) -> str:
    left = min(round(start / total * WIDTH), WIDTH - 1)
    right = max(left + 1, round(end / total * WIDTH))
    return "·" * left + "█" * (right - left)
