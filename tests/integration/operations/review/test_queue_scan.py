"""A scan of a whole queue, in several steps; nothing is missing afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import pick, table
from tarry.amqp.properties import Properties
from tarry.errors import BrokerError
from tarry.operations.review import queue_scan
from tarry.operations.review.queue_scan import QueueScan, ScanResult
from tests.integration.operations.review.reviewing import REVIEW, put_in_review
from tests.support.installation import Installation
from tests.support.waiting import wait_for


def number_of(delivery: Delivery) -> int:
    found = pick(delivery.properties.headers or b"", {b"n"})[b"n"].integer()
    assert found is not None
    return found


def look(
    installation: Installation, wanted: Callable[[Delivery], bool], *, most: int = 1_000, queue: str = REVIEW
) -> ScanResult:
    """One scan, closed afterwards: the queue gets all messages back."""

    async def run() -> ScanResult:
        async with QueueScan.open(installation.address, queue, wanted, most=most, most_bytes=1 << 20) as scan:
            return await scan.look()

    return asyncio.run(run())


@pytest.fixture
def hundred(installation: Installation) -> Installation:
    put_in_review(installation, [(Properties(headers=table({"n": n}), delivery_mode=2), b"x" * n) for n in range(100)])
    return installation


def test_a_long_queue_is_scanned_in_several_steps(hundred: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_scan, "MOST", 30)
    found = look(hundred, lambda one: number_of(one) % 10 == 3)
    assert (found.seen, found.whole) == (100, True)
    assert sorted(number_of(one.delivery) for one in found.kept) == list(range(3, 100, 10))
    wait_for(lambda: hundred.depth(REVIEW) == 100, what="all to be back")


def test_a_full_hand_stops_looking(hundred: Installation) -> None:
    found = look(hundred, lambda _: True, most=5)
    assert (len(found.kept), found.whole) == (5, False)
    wait_for(lambda: hundred.depth(REVIEW) == 100, what="all to be back")


def test_what_is_acknowledged_is_gone_and_the_rest_is_there(
    hundred: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_scan, "MOST", 30)

    async def run() -> None:
        async with QueueScan.open(
            hundred.address, REVIEW, lambda one: number_of(one) % 2 == 0, most=1_000, most_bytes=1 << 20
        ) as scan:
            found = await scan.look()
            scan.ack(found.kept[:20])
            scan.put_back(found.kept[20:])
            await scan.settled()

    asyncio.run(run())
    wait_for(lambda: hundred.depth(REVIEW) == 80, what="the others to be back")
    left = look(hundred, lambda _: True)
    assert len({number_of(one.delivery) for one in left.kept}) == 80


def test_a_queue_that_is_not_there_is_named(installation: Installation) -> None:
    with pytest.raises(BrokerError, match="no-such-queue"):
        look(installation, lambda _: True, queue="no-such-queue")
