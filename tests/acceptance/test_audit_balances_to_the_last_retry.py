"""A crowd of retries through the real process: the books agree with a count that somebody else kept."""

from __future__ import annotations

import os
import random
from typing import Any

import pika
import pytest

from tests.acceptance.audit_world import Worker, World, ask_all
from tests.harness.waiting import wait_for

CROWD = int(os.environ.get("TARRY_AUDIT_CROWD", "2000"))
"""The full size is 20,000."""


def with_headers(properties: pika.BasicProperties, queue: str) -> dict[str, Any]:
    """A new request that keeps what tarry wrote on the message."""
    kept = {name: value for name, value in (properties.headers or {}).items() if name.startswith("tarry-")}
    return {**kept, "original_queue": queue}


@pytest.mark.timeout(300 + CROWD // 20)
def test_a_crowd_is_accounted_for_to_the_last_one(world: World) -> None:
    queue = world.declare("orders")
    world.start()

    def fails(properties: pika.BasicProperties) -> dict[str, Any] | None:
        """Number n fails n % 4 times more: none, once, twice, or for good."""
        spent: Any = (properties.headers or {})["tarry-count"]
        return with_headers(properties, queue) if int(str(properties.message_id)) % 4 >= int(spent) else None

    with Worker(world, queue, fails) as worker:
        ask_all(world, queue, map(str, range(CROWD)))
        returns = CROWD // 4 * (1 + 2 + 3 + 3)
        wait_for(lambda: worker.total == returns, deadline=40 + CROWD / 40, what=f"{returns} returns")
        wait_for(
            lambda: world.number("select count(*) from transition where state = 'returned'") == returns,
            deadline=30,
            what="the tap to have seen them all",
        )
    reviews = CROWD // 4
    wait_for(lambda: world.depth("manual-review.pending") == reviews, what=f"{reviews} in review")
    code, answer = world.command("audit", "verify")
    balance = answer["balance"]
    assert (code, answer["missing"], answer["shortages"]) == (0, [], [])
    assert balance["requests"] == CROWD + worker.asked
    assert balance["returned"] == worker.total
    assert balance["in_review"] == reviews
    assert [balance[name] for name in ("waiting", "claimed", "unseen", "unroutable", "overdue", "lost")] == [0] * 6
    assert balance["duplicates"] == balance["twice"] == 0
    assert world.number("select count(*) from retry") == CROWD
    assert min(worker.drifts) >= 0


def test_requests_sent_twice_to_two_routers_make_one_retry_each_round(world: World) -> None:
    queue = world.declare("six.orders")
    world.start()
    world.start()
    ids = [f"m{number}" for number in range(300)]

    def fails(properties: pika.BasicProperties) -> dict[str, Any] | None:
        """Once more; and the request for it, too, is sent twice, one right behind the other."""
        spent: Any = (properties.headers or {})["tarry-count"]
        return with_headers(properties, queue) if int(spent) == 1 else None

    with Worker(world, queue, fails, copies=2) as worker:
        ask_all(world, queue, ids)
        ask_all(world, queue, random.Random(5).sample(ids, len(ids)), rate=120)
        wait_for(lambda: worker.total >= 600, deadline=60, what="two returns each")
        wait_for(
            lambda: world.number("select count(*) from transition where state = 'duplicate'") == 600,
            deadline=30,
            what="each second request to be known",
        )
        wait_for(lambda: world.verify() == (0, [], []), what="the books to balance")
    assert worker.seen == dict.fromkeys(ids, 2)
    assert world.number("select count(*) from transition where state = 'scheduled'") == 600


def test_a_consumer_that_strips_all_headers_is_exhausted_after_the_right_number(world: World) -> None:
    queue = world.declare("orders")
    world.start()
    ids = [f"m{number}" for number in range(50)]
    with Worker(world, queue, lambda _: {"original_queue": queue}) as worker:
        ask_all(world, queue, ids)
        wait_for(lambda: world.depth("manual-review.pending") == 50, deadline=40, what="all to be exhausted")
    assert worker.seen == dict.fromkeys(ids, 3), "three retries, as the policy says"
    assert world.number("select count(*) from retry where state = 'in_review' and retry_count = 3") == 50
