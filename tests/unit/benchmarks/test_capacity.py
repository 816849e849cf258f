from __future__ import annotations

import io
from dataclasses import dataclass
from typing import cast

import pytest
from rich.console import Console

from benchmarks.contenders.protocol import Contender
from benchmarks.router.stage import Stage
from benchmarks.suite.bench import Bench
from benchmarks.suite.details import capacity
from benchmarks.suite.promises import promises
from benchmarks.suite.samples import Sample, Samples
from benchmarks.suite.scenarios.capacity import LEAST_RATE, Climb, Step, climb, run

NAMES = {"tarry": "tarry", "polling-tuned": "The poller"}


def climbed(start: int, limit: int) -> list[int]:
    """The rates that are tried of a contender that carries up to `limit`."""
    return [one.rate for one in climb(start, lambda rate: Step(rate, 100 if rate <= limit else 900, 0, 1, 1))]


def test_climb_raises_the_rate_until_one_is_not_carried_and_tries_one_between() -> None:
    assert climbed(100, 240) == [100, 150, 225, 338, 276]


def test_climb_lowers_a_first_rate_that_is_not_carried() -> None:
    assert climbed(100, 30) == [100, 25, 50]


def test_climb_ends_where_nothing_is_carried() -> None:
    tried = climbed(100, 0)
    assert tried == [100, 25, 6]
    assert tried[-1] >= LEAST_RATE


def test_climb_is_bounded() -> None:
    assert len(climbed(1, 10**9)) < 12


@pytest.mark.parametrize(
    ("step", "carried"),
    [(Step(1, 250, 0, 1, 1), True), (Step(1, 251, 0, 1, 1), False), (Step(1, 9, 0, 1, 1, "5 returns"), False)],
)
def test_a_step_is_carried_on_time_and_without_a_backlog(step: Step, *, carried: bool) -> None:
    assert step.carried is carried


def carried(subject: str, rate: float) -> list[Sample]:
    figures = {"p99 ms": 40, "early": 0, "cpu µs": 500, "MiB": 90}
    return [
        Sample("capacity", subject, "per_s", rate),
        *(Sample("capacity", subject, f"{name} at {rate:.0f}/s", value) for name, value in figures.items()),
    ]


def test_capacity_is_that_of_the_best_way_to_run_a_contender() -> None:
    slow, fast = carried("polling-tuned, every 200 ms", 900), carried("polling-tuned, every 50 ms", 1200)
    found = Samples([*carried("tarry", 600), *slow, *fast])
    judged = {one.text: one for one in promises(found)}["capacity at bounded drift, times that of polling-tuned"]
    assert judged.found is not None
    assert (judged.found.median, judged.kept) == (0.5, False)


def test_capacity_tells_the_rate_with_what_it_costs() -> None:
    rows = capacity(Samples(carried("polling-tuned, every 50 ms", 1200)), NAMES).rows
    assert rows == [["The poller, every 50 ms", "1,200", "40.0", "none", "500", "90.0", ""]]


def test_capacity_says_where_no_rate_was_carried() -> None:
    rows = capacity(Samples([Sample("capacity", "tarry", "per_s", 0)]), NAMES).rows
    assert rows[0][-1] == "no rate was carried"


@dataclass
class Carries:
    """A contender that carries up to a limit; without one it breaks at its third step."""

    slug: str
    limit: int | None
    size: int = 60_000


def test_capacity_is_measured_in_turns_and_one_that_breaks_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[tuple[str, int]] = []

    def measure(one: Climb, rate: int) -> Step:
        contender = cast("Carries", one.contender)
        order.append((contender.slug, rate))
        if contender.limit is None and rate > 2_000:
            raise RuntimeError("it broke")
        return Step(rate, 100 if contender.limit is None or rate <= contender.limit else 900, 0, 1, 1)

    monkeypatch.setattr(Climb, "measure", measure)
    contenders = cast("list[Contender]", [Carries("a", 1_600), Carries("b", None), Carries("c", 1_000)])
    bench = Bench(cast("Stage", None), contenders, 1, 1.0, Console(file=io.StringIO()))
    run(bench)
    assert [slug for slug, _ in order] == [*"abc", *"bca", *"cab", "a"]
    assert {one.subject: one.value for one in bench.found.all if one.measure == "per_s"} == {"a": 1_500, "c": 1_000}
    assert [one.subject for one in bench.found.failures] == ["b"]
