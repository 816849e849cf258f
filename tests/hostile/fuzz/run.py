"""Cases by number: the same seed and number make the same case, on any machine and in any order."""

from __future__ import annotations

import logging
import signal
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

import structlog

from tests.hostile.fuzz.case import Case, save
from tests.hostile.fuzz.grammar import sound
from tests.hostile.fuzz.mutations import mutated
from tests.hostile.fuzz.oracle import judge

LONGEST = 2.0
"""Seconds of processor time that one case may take; they take a few hundred microseconds."""
SOUND = 0.25


class HangError(AssertionError):
    """A case took too long."""


@dataclass
class Tally:
    """What became of many cases."""

    results: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.results += other.results
        self.failures += other.failures

    @property
    def cases(self) -> int:
        return self.results.total() + len(self.failures)


def make(seed: int, number: int) -> Case:
    random = Random(f"{seed}:{number}")
    case = sound(random)
    return case if random.random() < SOUND else mutated(random, case)


def run(seed: int, numbers: range, folder: Path) -> Tally:
    """Every failing case is kept in the folder."""
    tally = Tally()
    with quiet(), watchdog():
        for number in numbers:
            case = make(seed, number)
            try:
                result = judged(case)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what we look for
                path = save(case, {"seed": seed, "number": number, "error": traceback.format_exc()}, folder)
                tally.failures.append(f"{path}: {case}: {type(error).__name__}: {str(error)[:300]}")
            else:
                tally.results[f"{case.form}: {result}"] += 1
    return tally


def judged(case: Case) -> str:
    """Not for longer than it may take; to be called under the watchdog."""
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST)
    try:
        return judge(case)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


@contextmanager
def watchdog() -> Iterator[None]:
    """By processor time: on a busy machine everything takes long by the clock."""

    def bark(_signal: int, _frame: FrameType | None) -> None:
        raise HangError(f"more than {LONGEST:g} s of processor time")

    before = signal.signal(signal.SIGVTALRM, bark)
    try:
        yield
    finally:
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def quiet() -> Iterator[None]:
    """Readers that pass over something say so in the log."""
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=False
    )
    try:
        yield
    finally:
        structlog.configure(**before)
