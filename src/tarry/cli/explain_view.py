"""Output of `tarry explain`: text, JSON, and the schedule of a policy as a timeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tarry.cli.output import line, print_table, table
from tarry.cli.topology_view import topology_source_json
from tarry.core.durations import humanise
from tarry.operations.explain import Explained, PolicySchedule

MOST_LEGS_SHOWN = 4

WIDTH = 48
"""Width of a timeline in characters."""


def explained_json(found: Explained) -> dict[str, Any]:
    shown = asdict(found) | {"topology": topology_source_json(found.topology)}
    return {"class" if name == "error_class" else name: value for name, value in shown.items()}


def print_explained(found: Explained) -> None:
    for name, text in _lines(found):
        line(f"{name:<11}{text}")


def _lines(found: Explained) -> Iterator[tuple[str, str]]:
    if found.queue is not None:
        yield "queue", f"{found.queue} (read from: {found.form})"
        if found.owner is not None:
            yield "owner", found.owner
        yield "policy", f"{found.policy or 'none'}: {found.policy_why}"
        yield "class", f"{found.error_class or 'not known'}: {found.class_why}"
    if found.outcome == "review":
        yield "outcome", f"review, in {found.review_queue}: {found.reason}"
        yield from _history_lines(found)
        yield from _budget_lines(found)
        return
    if found.outcome == "skip":
        yield "outcome", f"skipped: {found.reason}"
        if found.eligibility:
            yield "eligible", found.eligibility
        yield from _budget_lines(found)
        return
    attempt = f"retry {found.retry_count} of {found.max_retries}"
    yield "outcome", attempt if found.spends_attempt else "a retry that spends no attempt"
    yield from _wait_lines(found)
    yield "returns to", found.returns_to or ""
    if found.return_priority is not None:
        yield "priority", f"{found.return_priority}: {found.priority_why}"
    if found.eligibility:
        yield "eligible", found.eligibility
    yield from _history_lines(found)
    yield from _budget_lines(found)
    if found.max_rate is not None:
        yield "max rate", f"{found.max_rate} returns a second to this queue; the rest is held, in order"
    if found.breaker:
        yield "breaker", f"{found.breaker}; for its state: tarry breakers"


def _history_lines(found: Explained) -> Iterator[tuple[str, str]]:
    if found.adaptive:
        yield "history", found.adaptive


def _budget_lines(found: Explained) -> Iterator[tuple[str, str]]:
    for one in found.budgets:
        of = f" of {one.subject!r}" if one.subject else ""
        used = f": {one.used:,} of {one.limit:,} used{of}" if one.used is not None else f", counted{of}" if of else ""
        yield "budget", f"{one.budget}{used} from {one.period_begins} to {one.period_ends}; over it: {one.over}"
    if found.budget_why:
        yield "", found.budget_why


def _wait_lines(found: Explained) -> Iterator[tuple[str, str]]:
    yield "delay", f"{_range(found.delay_ms[0], found.delay_ms[-1])}: {found.delay_why}"
    if found.window_why:
        yield "window", found.window_why
    yield "waits in", _itinerary(found.itinerary[0])
    if found.itinerary[-1] != found.itinerary[0] or found.delay_ms[-1] != found.delay_ms[0]:
        most = "latest" if found.window_why else "with the most jitter"
        yield "", f"{_itinerary(found.itinerary[-1])} ({most})"
    if found.lane is not None:
        yield "lane", f"{found.lane}: only policies with this lane use these queues, its ladder and its relays"
    for legs in found.legs_ms[-1:]:
        yield "legs", _legs(legs)
    yield "due", " to ".join(dict.fromkeys(found.due))


def _itinerary(queues: list[str]) -> str:
    return ", then ".join(queues) if queues else "no tier: it returns at once"


def _legs(legs_ms: list[int]) -> str:
    """The router sends it again after each leg but the last."""
    shown = [humanise(ms) for ms in legs_ms]
    middle = f"{len(shown) - 2} × {shown[1]}, then " if len(shown) > MOST_LEGS_SHOWN else ""
    listed = f"{shown[0]}, then {middle}{shown[-1]}" if middle else ", then ".join(shown)
    return f"{listed}: {len(shown)} legs, because the ladder does not hold the whole delay"


def _range(least: int, most: int) -> str:
    return humanise(least) if least == most else f"{humanise(least)} to {humanise(most)}"


def schedule_json(schedule: PolicySchedule) -> dict[str, Any]:
    return {name: value for name, value in asdict(schedule).items() if name != "review_queue"}


def _title(schedule: PolicySchedule) -> str:
    match = ", ".join(f"{name} {glob}" for name, glob in schedule.match.items())
    lane = "" if schedule.lane is None else f"; lane {schedule.lane}"
    return f"{schedule.policy}: {match}{lane}"


def print_schedule(schedule: PolicySchedule) -> None:
    """One bar for each retry, between the first failure and the last return."""
    made = table(_title(schedule), "retry", "waits", "back after", "", right=("retry",))
    total = max((one.after_ms for one in schedule.retries), default=1) or 1
    for one in schedule.retries:
        waits = _range(one.delay_ms, one.delay_ms + one.longest_jitter_ms)
        bar = _bar(one.after_ms - one.delay_ms, one.after_ms, total)
        made.add_row(str(one.retry), waits, humanise(one.after_ms), bar)
    made.add_row("", "", "", f"then {schedule.review_queue}")
    print_table(made)
    if schedule.max_retries_ceiling > schedule.max_retries:
        line(f"A request may ask for up to {schedule.max_retries_ceiling} retries.")
    for window in schedule.windows:
        line(f"Messages return {window}.")
    for budget in schedule.budgets:
        line(f"At most {budget}.")
    if schedule.eligibility:
        line(f"Before each retry, {schedule.eligibility}.")
    if schedule.return_priority is not None:
        line(f"Messages return with priority {schedule.return_priority}.")
    if schedule.max_rate is not None:
        line(f"At most {schedule.max_rate} messages a second return to each queue.")
    if schedule.breaker:
        line(f"The breaker of a queue {schedule.breaker}.")
    if schedule.adaptive:
        line(f"An error is given up {schedule.adaptive}.")


def _bar(start: int, end: int, total: int) -> str:
    left = min(round(start / total * WIDTH), WIDTH - 1)
    right = max(left + 1, round(end / total * WIDTH))
    return "·" * left + "█" * (right - left)
