"""The judge of the traces benchmark: it finds a cost that is there, and none where there is only noise."""

from __future__ import annotations

import random

import pytest

from benchmarks.traces.__main__ import speed
from benchmarks.traces.verdict import CHANCE, FEWEST, MOST, Round, compare, overall


def rounds(cost: float, noise: float, number: int = 8, seed: int = 1) -> list[Round]:
    """Runs of 150 µs a request, each off by some noise; the machine is slower in some rounds than in others."""
    draw = random.Random(seed)

    def run(machine: float, more: float = 0.0) -> float:
        return 150 * machine * (1 + more) * (1 + draw.gauss(0, noise))

    machines = [draw.uniform(0.8, 1.4) for _ in range(number)]
    return [(run(one), run(one), run(one, cost)) for one in machines]


def test_verdict_is_kept_where_a_mode_costs_nothing() -> None:
    """One in a hundred would be taken for a cost."""
    found = [compare(rounds(0, 0.01, seed=seed)) for seed in range(20)]
    assert sum(one.verdict == "kept" for one in found) >= 18, found
    assert all(one.noise < MOST for one in found)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("cost", [0.015, 0.05])
def test_verdict_is_broken_by_a_cost_that_stands_out(cost: float, seed: int) -> None:
    found = compare(rounds(cost, 0.002, seed=seed))
    assert found.verdict == "broken", found
    assert found.overhead == pytest.approx(cost, abs=0.004)


def test_verdict_is_undecided_where_noise_is_above_the_promise() -> None:
    found = compare(rounds(0, 0.10))
    assert found.noise > MOST
    assert found.verdict == "undecided"


def test_verdict_is_undecided_with_too_few_rounds() -> None:
    assert compare(rounds(0, 0.002, number=FEWEST - 1)).verdict == "undecided"
    assert compare(rounds(0, 0.002, number=FEWEST)).verdict == "kept"
    assert compare(rounds(0.5, 0.002, number=FEWEST - 1)).chance >= CHANCE


def test_verdict_is_broken_by_a_cost_above_the_noise_of_a_noisy_run() -> None:
    found = compare(rounds(0.5, 0.05))
    assert found.noise > MOST
    assert found.verdict == "broken"


def test_verdict_does_not_take_a_gain_for_a_cost() -> None:
    assert compare(rounds(-0.02, 0.002)).verdict == "kept"


def test_verdict_of_many_rounds_tries_exchanges_at_random_and_repeats() -> None:
    many = rounds(0.02, 0.005, number=20)
    assert compare(many) == compare(many)
    assert compare(many).verdict == "broken"


def test_speed_leaves_out_the_look_after_the_end() -> None:
    assert speed([(10.0, 500), (11.0, 4_500), (12.0, 8_500), (13.0, 9_000)], 9_000) == 4_000
    assert speed([(10.0, 500), (11.0, 4_500)], 4_500) == 4_000


def test_verdict_of_all_is_that_of_the_worst() -> None:
    assert overall(["kept", "kept"]) == "kept"
    assert overall(["kept", "undecided"]) == "undecided"
    assert overall(["undecided", "broken", "kept"]) == "broken"
