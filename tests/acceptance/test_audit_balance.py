"""Many retries through the real process: the audit agrees with an independent count."""

from __future__ import annotations

import os
import random
from typing import Any

import pika
import pytest

from tests.acceptance.audited import AuditedInstallation, Worker, request_all
from tests.support.waiting import wait_for

CROWD = int(os.environ.get("TARRY_AUDIT_CROWD", "400"))
"""The full size is 20,000."""


def with_headers(properties: pika.BasicProperties, queue: str) -> dict[str, Any]:
    """A new request that keeps what tarry wrote on the message."""
    kept = {name: value for name, value in (properties.headers or {}).items() if name.startswith("tarry-")}
    return {**kept, "original_queue": queue}


@pytest.mark.timeout(300 + CROWD // 20)
def test_a_crowd_is_accounted_for_to_the_last_one(installation: AuditedInstallation) -> None:
    queue = installation.declare("orders")
    installation.start()

    def fails(properties: pika.BasicProperties) -> dict[str, Any] | None:
        """Number n fails n % 4 times more: none, once, twice, or for good."""
        spent: Any = (properties.headers or {})["tarry-count"]
        return with_headers(properties, queue) if int(str(properties.message_id)) % 4 >= int(spent) else None

    with Worker(installation, queue, fails) as worker:
        request_all(installation, queue, map(str, range(CROWD)))
        returns = CROWD // 4 * (1 + 2 + 3 + 3)
        wait_for(lambda: worker.total == returns, deadline=120 + CROWD / 40, what=f"{returns} returns")
        wait_for(
            lambda: installation.number("select count(*) from transition where state = 'returned'") == returns,
            deadline=120,
            what="the tap to have seen them all",
        )
    reviews = CROWD // 4
    wait_for(lambda: installation.depth("manual-review.pending") == reviews, what=f"{reviews} in review")
    code, answer = installation.audit("verify")
    balance = answer["balance"]
    assert (code, answer["missing"], answer["shortages"]) == (0, [], [])
    assert balance["requests"] == CROWD + worker.requested
    assert balance["returned"] == worker.total
    assert balance["in_review"] == reviews
    assert [balance[name] for name in ("waiting", "claimed", "unseen", "unroutable", "overdue", "lost")] == [0] * 6
    assert balance["duplicates"] == balance["twice"] == 0
    assert installation.number("select count(*) from retry") == CROWD
    assert min(worker.drifts) >= 0


def test_requests_sent_twice_to_two_routers_make_one_retry_each_round(installation: AuditedInstallation) -> None:
    queue = installation.declare("six.orders")
    installation.start(2)
    ids = [f"m{number}" for number in range(100)]

    def fails(properties: pika.BasicProperties) -> dict[str, Any] | None:
        """Once more; and the request for it, too, is sent twice, one right behind the other."""
        spent: Any = (properties.headers or {})["tarry-count"]
        return with_headers(properties, queue) if int(spent) == 1 else None

    with Worker(installation, queue, fails, copies=2) as worker:
        request_all(installation, queue, [*ids, *random.Random(5).sample(ids, len(ids))])
        wait_for(lambda: worker.total >= 200, deadline=120, what="two returns each")
        wait_for(
            lambda: installation.number("select count(*) from transition where state = 'duplicate'") == 200,
            deadline=120,
            what="each second request to be known",
        )
        installation.wait_verified()
    assert worker.seen == dict.fromkeys(ids, 2)
    assert installation.number("select count(*) from transition where state = 'scheduled'") == 200


def test_a_consumer_that_strips_headers_is_exhausted_after_three_retries(
    installation: AuditedInstallation,
) -> None:
    queue = installation.declare("orders")
    installation.start()
    ids = [f"m{number}" for number in range(20)]
    with Worker(installation, queue, lambda _: {"original_queue": queue}) as worker:
        request_all(installation, queue, ids)
        wait_for(lambda: installation.depth("manual-review.pending") == 20, deadline=120, what="all to be exhausted")
    assert worker.seen == dict.fromkeys(ids, 3), "three retries, as the policy says"
    assert installation.number("select count(*) from retry where state = 'in_review' and retry_count = 3") == 20
