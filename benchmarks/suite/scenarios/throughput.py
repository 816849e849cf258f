"""Scheduling and end-to-end throughput of every contender, the order rotated over the repeats."""

from __future__ import annotations

from benchmarks.contenders.protocol import Contender, Job
from benchmarks.suite.bench import LONG_S, SHORT_S, Bench
from benchmarks.suite.throughput import end_to_end, scheduling

SCHEDULING, END_TO_END = "scheduling", "end to end"


def run_scheduling(bench: Bench) -> None:
    for repeat, one in bench.rotated():
        bench.attempt(SCHEDULING, one.slug, lambda repeat=repeat, one=one: _scheduling(bench, repeat, one))  # type: ignore[misc]


def run_end_to_end(bench: Bench) -> None:
    for repeat, one in bench.rotated():
        bench.attempt(END_TO_END, one.slug, lambda repeat=repeat, one=one: _end_to_end(bench, repeat, one))  # type: ignore[misc]


def _scheduling(bench: Bench, repeat: int, one: Contender) -> None:
    figures = scheduling(bench.on, one, Job(LONG_S), bench.size(one.size // 2))
    bench.note(SCHEDULING, one.slug, repeat, **figures)


def _end_to_end(bench: Bench, repeat: int, one: Contender) -> None:
    figures = end_to_end(bench.on, one, Job(SHORT_S), bench.size(one.size))
    bench.note(END_TO_END, one.slug, repeat, **figures)
