"""The short form of `make fuzz`, and that it would find what it looks for."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import BadTableError
from tarry.contract.request import parse
from tests.hostile.fuzz import mutations, oracle
from tests.hostile.fuzz.__main__ import main
from tests.hostile.fuzz.case import Case, Expected, read, save
from tests.hostile.fuzz.grammar import sound
from tests.hostile.fuzz.run import judged, make, quiet, run, watchdog

CASES = 3_000
SEED = 20_261_116


def test_no_case_does_harm(tmp_path: Path) -> None:
    tally = run(SEED, range(CASES), tmp_path)
    assert tally.failures == []
    assert tally.cases == CASES
    outcomes = {name.partition(": ")[2] for name in tally.results}
    assert outcomes == {"refused", "review", "scheduled", "report"}, "the generator has lost a part of its reach"


def test_seed_and_number_make_the_same_case_again() -> None:
    assert [make(SEED, number) for number in range(50)] == [make(SEED, number) for number in range(50)]
    assert make(SEED, 1) != make(SEED + 1, 1)


def test_every_mutation_is_used() -> None:
    random = Random(1)
    seen: set[str] = set()
    for _ in range(2_000):
        seen.update(mutations.mutated(random, sound(random)).mutations)
    ways = {way.__name__ for ways in (mutations.TABLE, *mutations.BODY.values()) for way in ways}
    assert seen == ways | {"around"}


def a_parser_that(change: Any) -> Any:
    """The real one with a mistake in it."""

    def broken(delivery: Delivery, *rest: Any) -> Any:
        return change(delivery, parse(delivery, *rest))

    return broken


def raises(delivery: Delivery, item: Any) -> Any:
    if b"S\xff\xff\xff\xff" in (delivery.properties.headers or b""):
        raise IndexError
    return item


def loses_a_body(_delivery: Delivery, item: Any) -> Any:
    return item._replace(body=b"") if hasattr(item, "body") else item


def changes_a_header(delivery: Delivery, item: Any) -> Any:
    if not hasattr(item, "body"):
        return item
    flipped = (delivery.properties.headers or b"").replace(b"\x01", b"\x02", 1)
    delivery.properties.headers = flipped
    return item


def hangs(delivery: Delivery, item: Any) -> Any:
    end = time.process_time() + 5
    while b"deep" in (delivery.properties.headers or b"") and time.process_time() < end:
        pass
    return item


@pytest.mark.parametrize("mistake", [raises, loses_a_body, changes_a_header, hangs])
def test_a_decoder_with_a_mistake_is_caught_and_the_case_is_kept(
    mistake: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(oracle, "parse", a_parser_that(mistake))
    monkeypatch.setattr("tests.hostile.fuzz.run.LONGEST", 0.5)
    tallies = (run(SEED, range(number, number + 1), tmp_path) for number in range(CASES))
    assert next((tally.failures for tally in tallies if tally.failures), None)
    kept = read(next(tmp_path.iterdir()))
    with quiet(), watchdog(), pytest.raises((AssertionError, IndexError, BadTableError)):
        judged(kept)


def test_a_kept_case_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = Case("headers", b"", expected=Expected("orders", b""))
    path = save(wrong, {"seed": 1, "number": 2}, tmp_path)
    with pytest.raises(AssertionError, match="a sound request was refused"):
        main(["--replay", str(path)])
    assert "headers, 0 bytes of headers" in capsys.readouterr().out
