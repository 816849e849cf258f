"""When a canary passes, and when it does not: the rules as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tarry.operations.canary import (
    Baseline,
    CanaryProgress,
    QueueReading,
    describe_unacknowledged,
    has_failed,
    is_acknowledged,
    is_reported,
)

TEN = CanaryProgress("orders", 10, failed=0, returned=10, reported=0, cancelled=0, looked=True, watched=True)


@pytest.mark.parametrize(("failed", "fails"), [(0, False), (1, False), (2, True), (10, True)])
def test_a_canary_fails_when_more_than_a_tenth_failed_again(failed: int, fails: bool) -> None:  # noqa: FBT001 - a table
    assert has_failed([replace(TEN, failed=failed)]) is fails


def test_a_canary_passes_on_reports_for_all_that_did_not_fail_or_end() -> None:
    done = replace(TEN, reported=8, failed=1, cancelled=1)
    assert is_reported([done])
    assert not is_reported([replace(done, looked=False)])
    assert not is_reported([done, replace(TEN, queue="mails", reported=9)])
    assert not is_reported([]), "nothing is known of it"


@pytest.mark.parametrize(
    ("reading", "passes"),
    [
        (QueueReading(0, 0, consumers=1, acks=None), True),
        (QueueReading(0, 0, consumers=0, acks=110), True),
        (QueueReading(0, 0, consumers=0, acks=109), False),
        (QueueReading(0, 0, consumers=0, acks=None), False),
        (QueueReading(0, 1, consumers=1, acks=None), False),
        (QueueReading(1, 0, consumers=1, acks=134), False),
        (QueueReading(1, 0, consumers=1, acks=135), True),
        (QueueReading(0, 1, consumers=1, acks=5), False),
    ],
)
def test_a_canary_is_acknowledged_by_an_empty_queue_or_a_count(
    reading: QueueReading,
    passes: bool,  # noqa: FBT001 - a table
) -> None:
    """At the release the queue held 5 and had acknowledged 100; the count begins with 120."""
    assert is_acknowledged(TEN, Baseline(5, 100, 120), reading) is passes


def test_a_canary_counts_nothing_before_the_statistics_have_settled() -> None:
    assert not is_acknowledged(TEN, Baseline(5, 100), QueueReading(0, 1, consumers=1, acks=1000))


def test_a_canary_counts_what_came_into_the_queue_just_before_it() -> None:
    """Fifty came within the seconds that the statistics were behind at the release: the canary is among their 60."""
    settled = Baseline(5, 100).settle(TEN, QueueReading(50, 10, consumers=1, acks=120))
    assert settled == Baseline(50, 100, 120)
    assert Baseline(5, 100).settle(TEN, QueueReading(0, 1, consumers=1, acks=None)) == Baseline(5, 100, 0)


def test_a_canary_needs_no_acknowledgement_of_what_failed_or_was_cancelled() -> None:
    part = replace(TEN, failed=1, cancelled=2)
    assert is_acknowledged(part, Baseline(0, 0, 0), QueueReading(0, 1, consumers=1, acks=7))
    assert not is_acknowledged(part, Baseline(0, 0, 0), QueueReading(0, 1, consumers=1, acks=6))


def test_a_canary_that_waits_says_what_for() -> None:
    def said(reading: QueueReading, baseline: Baseline = Baseline(5, 100, 120)) -> str:  # noqa: B008 - frozen
        return describe_unacknowledged(TEN, baseline, reading)

    assert said(QueueReading(3, 0, 0, 120)) == "queue 'orders' has no consumers (3 ready, 0 unacknowledged)"
    assert said(QueueReading(0, 4, 2, 123)) == "queue 'orders' acknowledged 3 of 15 (0 ready, 4 unacknowledged)"
    assert said(QueueReading(0, 4, 2, 1)) == "queue 'orders' acknowledged 0 of 15 (0 ready, 4 unacknowledged)"
    assert said(QueueReading(0, 4, 2, None)) == "queue 'orders' has not been empty since (0 ready, 4 unacknowledged)"
