"""When a burst begins the tap pauses once, so that messages that are due at once return first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tarry.amqp.delivery import Delivery
from tarry.errors import AuditUnavailableError
from tarry.service.tap import BATCH, REST, BurstBackoff, TapQueue, Unwritten


def test_after_the_first_full_batch_it_rests() -> None:
    assert BurstBackoff().rest(BATCH) == REST


def test_a_batch_that_is_not_full_is_no_reason_to_rest() -> None:
    assert BurstBackoff().rest(BATCH - 1) == 0.0


def test_under_a_lasting_load_it_keeps_pace() -> None:
    backoff = BurstBackoff()
    assert sum(backoff.rest(BATCH) for _ in range(100)) == REST


def test_once_it_has_caught_up_it_may_rest_again() -> None:
    backoff = BurstBackoff()
    assert [backoff.rest(size) for size in (BATCH, BATCH, 1, BATCH)] == [REST, 0.0, 0.0, REST]


@dataclass
class Writer:
    trouble: AuditUnavailableError | None = None

    async def handle(self, deliveries: Sequence[Delivery], arrived_ms: Callable[[int], int]) -> Unwritten:
        raise NotImplementedError


def test_a_tap_is_behind_after_a_full_batch_and_without_postgres() -> None:
    writer = Writer()
    tap = TapQueue("retry.audit", "tap", writer)
    found = [tap.is_behind]
    for size in (BATCH, 1):
        tap.backoff.rest(size)
        found.append(tap.is_behind)
    writer.trouble = AuditUnavailableError("away")
    assert [*found, tap.is_behind] == [False, True, False, True]
