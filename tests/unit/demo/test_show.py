"""When the demo has ended."""

from dataclasses import replace

import pytest

from tarry.demo.show import finished
from tarry.demo.workload import Tally, expected_done, expected_in_review
from tarry.store.rows import Balance

ALL_DONE = Tally(done=expected_done())
ALL_RECORDED = Balance(
    retries=34,
    scheduled=42,
    returned=42,
    in_review=expected_in_review(),
    waiting=0,
    claimed=0,
    unroutable=0,
    duplicates=0,
    overdue=0,
)


def test_finished_once_everything_is_done_and_recorded() -> None:
    assert finished(ALL_RECORDED, ALL_DONE)


def test_finished_waits_for_the_worker() -> None:
    assert not finished(ALL_RECORDED, Tally(done=expected_done() - 1))


@pytest.mark.parametrize("behind", [{"waiting": 1}, {"claimed": 1}, {"unseen": 1}, {"in_review": 9}])
def test_finished_waits_for_the_audit(behind: dict[str, int]) -> None:
    assert not finished(replace(ALL_RECORDED, **behind), ALL_DONE)
