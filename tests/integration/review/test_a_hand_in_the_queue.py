"""A look through a queue: all of it, in several grips, and nothing is missing afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tarry.contract.encoding import table
from tarry.contract.fields import pick
from tarry.contract.message import Delivery
from tarry.contract.properties import Properties
from tarry.control.review import grip
from tarry.control.review.hand import Hand, Look
from tarry.errors import BrokerError
from tests.harness.waiting import wait_for
from tests.integration.review.reviewing import REVIEW, put_by_hand
from tests.integration.router.serving import Place


def number_of(delivery: Delivery) -> int:
    found = pick(delivery.properties.headers or b"", {b"n"})[b"n"].integer()
    assert found is not None
    return found


def look(place: Place, wanted: Callable[[Delivery], bool], *, most: int = 1_000, queue: str = REVIEW) -> Look:
    """And let go of everything."""

    async def run() -> Look:
        async with Hand.open(place.address, queue, wanted, most=most, most_bytes=1 << 20) as hand:
            return await hand.look()

    return asyncio.run(run())


@pytest.fixture
def hundred(place: Place) -> Place:
    put_by_hand(place, [(Properties(headers=table({"n": n}), delivery_mode=2), b"x" * n) for n in range(100)])
    return place


def test_a_long_queue_is_held_in_several_grips(hundred: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grip, "MOST", 30)
    found = look(hundred, lambda one: number_of(one) % 10 == 3)
    assert (found.seen, found.whole) == (100, True)
    assert sorted(number_of(one.delivery) for one in found.kept) == list(range(3, 100, 10))
    wait_for(lambda: hundred.depth(REVIEW) == 100, what="all to be back")


def test_a_full_hand_stops_looking(hundred: Place) -> None:
    found = look(hundred, lambda _: True, most=5)
    assert (len(found.kept), found.whole) == (5, False)
    wait_for(lambda: hundred.depth(REVIEW) == 100, what="all to be back")


def test_what_is_acknowledged_is_gone_and_the_rest_is_there(hundred: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grip, "MOST", 30)

    async def run() -> None:
        async with Hand.open(
            hundred.address, REVIEW, lambda one: number_of(one) % 2 == 0, most=1_000, most_bytes=1 << 20
        ) as hand:
            found = await hand.look()
            hand.ack(found.kept[:20])
            hand.put_back(found.kept[20:])
            await hand.settled()

    asyncio.run(run())
    wait_for(lambda: hundred.depth(REVIEW) == 80, what="the others to be back")
    left = look(hundred, lambda _: True)
    assert len({number_of(one.delivery) for one in left.kept}) == 80


def test_a_queue_that_is_not_there_is_named(place: Place) -> None:
    with pytest.raises(BrokerError, match="no-such-queue"):
        look(place, lambda _: True, queue="no-such-queue")
