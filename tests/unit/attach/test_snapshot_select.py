from __future__ import annotations

import pytest

from tarry.attach.snapshot import select
from tarry.core.names import Names
from tarry.errors import SettingsError

THERE = ["orders.new", "orders.old", "mail", "odd*name", "retry.scheduled", "amq.gen-1", "manual-review.pending"]


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        (["mail"], ["mail"]),
        (["missing"], ["missing"]),
        (["orders.*"], ["orders.new", "orders.old"]),
        (["*"], ["mail", "odd*name", "orders.new", "orders.old"]),
        (["odd*name"], ["odd*name"]),
        (["orders.new", "orders.*"], ["orders.new", "orders.old"]),
        (["retry.scheduled"], ["retry.scheduled"]),
    ],
)
def test_names_are_taken_as_they_are_and_globs_spare_our_own(wanted: list[str], chosen: list[str]) -> None:
    assert select(wanted, THERE, Names()) == chosen


def test_a_glob_that_matches_nothing_is_a_mistake() -> None:
    with pytest.raises(SettingsError, match=r"No queue matches 'bills\.\*'"):
        select(["bills.*"], THERE, Names())
