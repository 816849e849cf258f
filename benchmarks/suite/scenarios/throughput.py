"""Scheduling and end-to-end throughput of every contender, the order rotated over the repeats."""

from __future__ import annotations

from functools import partial

from benchmarks.contenders.protocol import Contender, Job
from benchmarks.contenders.registry import by_slug
from benchmarks.suite.bench import LONG_S, SHORT_S, Bench
from benchmarks.suite.promises import NOT_BEHIND, TARRY, THREE_TIMES
from benchmarks.suite.samples import BESIDE
from benchmarks.suite.scenarios import ceiling
from benchmarks.suite.throughput import end_to_end, scheduling

WARM, SCHEDULING, END_TO_END = "warm-up", "scheduling", "end to end"
FAST = 20_000
"""Who needs more requests for a quarter of a minute end to end needs all of them for a few seconds of scheduling."""

WARM_UP = 500
COMPARED = (*THREE_TIMES, NOT_BEHIND)
FURTHER = 100
"""Where the numbers of further repeats of tarry begin, those beside a contender."""


def warm_up(bench: Bench) -> None:
    """Everybody once with a few requests, which do not count: who is measured first must not pay for cold files."""
    for one in bench.contenders:
        bench.attempt(WARM, one.slug, partial(end_to_end, bench.on, one, Job(SHORT_S), WARM_UP))


def run_scheduling(bench: Bench) -> None:
    """With the broker's ceiling beside it in every repeat: tarry is told as a fraction of that."""
    for repeat in range(bench.repeats):
        bench.attempt(SCHEDULING, ceiling.PUBLISH, partial(_ceiling, bench, repeat))
        for one in bench.turn(repeat):
            bench.attempt(SCHEDULING, one.slug, partial(_scheduling, bench, repeat, one))


def run_end_to_end(bench: Bench) -> None:
    for repeat in range(bench.repeats):
        for place, one in enumerate(bench.turn(repeat)):
            pair = one.slug in COMPARED and TARRY in [other.slug for other in bench.contenders]
            bench.attempt(END_TO_END, one.slug, partial(_pair if pair else _alone, bench, repeat, place, one))


def _ceiling(bench: Bench, repeat: int) -> None:
    bench.note(SCHEDULING, ceiling.PUBLISH, repeat, per_s=ceiling.publish(bench))


def _scheduling(bench: Bench, repeat: int, one: Contender) -> None:
    enough = one.size if one.size >= FAST else one.size // 2
    figures = scheduling(bench.on, one, Job(LONG_S), bench.size(enough))
    bench.note(SCHEDULING, one.slug, repeat, **figures)


def _alone(bench: Bench, repeat: int, _place: int, one: Contender) -> None:
    _end_to_end(bench, repeat, one)


def _pair(bench: Bench, repeat: int, place: int, one: Contender) -> None:
    """The contender, and tarry right beside it; who is first changes from repeat to repeat."""
    again, ours = FURTHER * (repeat + 1) + place, by_slug(TARRY)
    if repeat % 2:
        _end_to_end(bench, repeat, one)
        beside = _end_to_end(bench, again, ours)
    else:
        beside = _end_to_end(bench, again, ours)
        _end_to_end(bench, repeat, one)
    bench.note(END_TO_END, one.slug, repeat, **{BESIDE: beside})


def _end_to_end(bench: Bench, repeat: int, one: Contender) -> float:
    figures = end_to_end(bench.on, one, Job(SHORT_S), bench.size(one.size))
    bench.note(END_TO_END, one.slug, repeat, **figures)
    return figures["per_s"]
