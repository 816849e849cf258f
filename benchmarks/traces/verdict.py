"""Whether traces cost something: each mode against the two runs without traces of the same round.

If a mode costs nothing, the three runs of a round differ by chance only, and any of them could carry the name of the
mode. So the names are exchanged, in all rounds and in all ways. An overhead that hardly any other exchange reaches is
told from noise. How much noise there is shows in the two runs without traces (A/A). With too much of it, or too few
rounds, the run shows nothing: it is undecided.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeVar

T = TypeVar("T")
Verdict = Literal["kept", "broken", "undecided"]

MOST = 0.03
"""The overhead stays below this."""

CHANCE = 0.01
"""An overhead that chance makes less often than this is told from noise. A run makes four comparisons."""

FEWEST = 8
"""Rounds. With fewer, chance alone makes any overhead often enough."""

EXACT = 9
"""Up to so many rounds all exchanges are tried; beyond, as many at random."""

Round = tuple[float, float, float]
"""The cost of one request when off, when off again, and in the mode: processor time, or the time between two."""


class Comparison(NamedTuple):
    """The cost of a mode, as a share of the cost without traces."""

    overhead: float
    """The median over the rounds."""
    chance: float
    """The share of all exchanges with at least this overhead."""
    a_a: float
    """The median difference between off and off again."""
    noise: float
    """What the median difference between off and off again could be if chance had turned each round either way: nearly
    all turns make less.
    """
    rounds: int

    @property
    def verdict(self) -> Verdict:
        if self.chance < CHANCE:
            return "broken"
        if self.noise >= MOST or self.rounds < FEWEST:
            return "undecided"
        return "kept" if self.overhead < MOST else "broken"


def compare(rounds: Sequence[Round]) -> Comparison:
    overhead = _overhead([(mode, off, again) for off, again, mode in rounds])
    exchanged = [_overhead(one) for one in _exchanges(rounds)]
    same = [again / off - 1 for off, again, _ in rounds]
    return Comparison(
        overhead=round(overhead, 4),
        chance=round(sum(one >= overhead for one in exchanged) / len(exchanged), 4),
        a_a=round(statistics.median(same), 4),
        noise=round(_noise(same), 4),
        rounds=len(rounds),
    )


def overall(found: Sequence[Verdict]) -> Verdict:
    if "broken" in found:
        return "broken"
    return "undecided" if "undecided" in found else "kept"


def _overhead(rounds: Sequence[Round]) -> float:
    """Of the first run of each round over the mean of the two others, in the median."""
    return statistics.median(one / ((other + another) / 2) - 1 for one, other, another in rounds)


def _exchanges(rounds: Sequence[Round]) -> Iterator[Sequence[Round]]:
    ways = [((one, two, three), (two, three, one), (three, one, two)) for one, two, three in rounds]
    if len(rounds) <= EXACT:
        return itertools.product(*ways)
    return _at_random(ways, 3**EXACT)


def _noise(same: Sequence[float]) -> float:
    signs = [(one, -one) for one in same]
    turned = itertools.product(*signs) if len(same) <= EXACT else _at_random(signs, 2**EXACT)
    found = sorted(abs(statistics.median(one)) for one in turned)
    return found[int((1 - CHANCE) * (len(found) - 1))]


def _at_random(choices: Sequence[Sequence[T]], times: int) -> Iterator[Sequence[T]]:
    draw = random.Random(len(choices))  # the same for the same number of rounds
    return ([draw.choice(one) for one in choices] for _ in range(times))
