"""A message that cannot be handled is found by halving its batch, and does not affect the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tarry.amqp.delivery import Delivery
from tarry.amqp.properties import Properties
from tarry.errors import BrokerUnreachableError
from tarry.router.batches import OUR_MISTAKE, BatchResult, handle_batch, isolate_poison


class PoisonError(Exception):
    """The error that the bad items cause."""


def deliveries(count: int) -> list[Delivery]:
    return [Delivery(b"", Properties(), "", "", False, tag) for tag in range(1, count + 1)]


@dataclass
class Handler:
    """Acknowledges every delivery but those that it is told to fail for."""

    mistakes: set[int] = field(default_factory=set)
    outages: set[int] = field(default_factory=set)
    not_reviewable: set[int] = field(default_factory=set)
    handled: list[Delivery] = field(default_factory=list)
    reviewed: list[tuple[int, str]] = field(default_factory=list)

    async def handle(self, batch: Sequence[Delivery]) -> BatchResult:
        tags = [one.tag for one in batch]
        if self.mistakes.intersection(tags):
            raise PoisonError
        if self.outages.intersection(tags):
            raise BrokerUnreachableError("gone")
        self.handled += batch
        return BatchResult(tags)

    async def give_up(self, delivery: Delivery, reason: str) -> BatchResult:
        if delivery.tag in self.not_reviewable:
            raise PoisonError
        self.reviewed.append((delivery.tag, reason))
        return BatchResult([delivery.tag])

    def run(self, count: int) -> BatchResult:
        with capture_logs():  # formatting the tracebacks would take most of the time
            return BatchResult.of(asyncio.run(handle_batch(deliveries(count), self.handle, self.give_up)))


def test_a_good_batch_is_handled_once_and_as_it_came() -> None:
    handler = Handler()
    assert handler.run(5).acked == [1, 2, 3, 4, 5]
    assert handler.handled == deliveries(5)


def test_a_bad_delivery_goes_to_review_and_the_others_are_handled() -> None:
    handler = Handler(mistakes={3})
    assert handler.run(5) == BatchResult([1, 2, 3, 4, 5], [])
    assert handler.reviewed == [(3, OUR_MISTAKE)]


def test_what_is_handled_a_second_time_counts_as_redelivered() -> None:
    handler = Handler(mistakes={3})
    handler.run(5)
    assert all(one.redelivered for one in handler.handled)


def test_a_delivery_that_cannot_be_reviewed_is_requeued() -> None:
    assert Handler(mistakes={2}, not_reviewable={2}).run(3) == BatchResult([1, 3], [2])


def test_during_an_outage_the_batch_is_requeued_and_nothing_is_reviewed() -> None:
    handler = Handler(outages={2})
    assert handler.run(3) == BatchResult([], [1, 2, 3])
    assert handler.reviewed == []


def test_an_outage_in_one_half_requeues_that_half_only() -> None:
    handler = Handler(mistakes={1}, outages={4})
    assert handler.run(4) == BatchResult([1, 2], [3, 4])


@given(st.sets(st.integers(1, 40)), st.sets(st.integers(1, 40)), st.sets(st.integers(1, 40)), st.integers(1, 40))
def test_every_delivery_is_settled_exactly_once(
    mistakes: set[int], outages: set[int], not_reviewable: set[int], count: int
) -> None:
    handler = Handler(mistakes, outages - mistakes, not_reviewable)
    result = handler.run(count)
    assert sorted([*result.acked, *result.requeued]) == list(range(1, count + 1))
    assert {tag for tag, _ in handler.reviewed} == {tag for tag in mistakes - not_reviewable if tag <= count}


@given(st.lists(st.booleans(), min_size=1, max_size=50))
def test_each_bad_item_is_alone_and_the_order_stays(bad: list[bool]) -> None:
    async def handle(items: Sequence[int]) -> list[int]:
        if any(bad[item] for item in items):
            raise PoisonError
        return list(items)

    async def alone(item: int, error: Exception) -> list[int]:
        assert isinstance(error, PoisonError)
        return [-item - 1]

    parts = asyncio.run(isolate_poison(range(len(bad)), handle, alone, PoisonError))
    assert [one for part in parts for one in part] == [-item - 1 if bad[item] else item for item in range(len(bad))]


def test_an_error_of_another_type_is_raised() -> None:
    async def handle(_: Sequence[int]) -> None:
        raise ValueError("not poison")

    async def alone(_: int, __: Exception) -> None:
        raise AssertionError

    with pytest.raises(ValueError, match="not poison"):
        asyncio.run(isolate_poison([1, 2], handle, alone, PoisonError))
