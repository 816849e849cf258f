"""The product itself, without the router: a message with its way in BCC comes back in time and untouched."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.topology.installation import Arrived, TopologyInstallation, drained
from tests.support.waiting import eventually

COUNT = 300
LONGEST_MS = 20_000
STALL_SECONDS = 60
"""Far more than any drift; a tier that stalls does so for three minutes."""


def test_three_hundred_random_delays_none_early_all_arrive_as_sent(installation: TopologyInstallation) -> None:
    """How late they are is for a benchmark to say."""
    with installation.open_channel() as opened:
        installation.attach(opened, "orders")
        opened.confirm_delivery()
        assert min(lateness_of_all(installation, opened, random.Random(0))) >= 0


def lateness_of_all(installation: TopologyInstallation, opened: BlockingChannel, draw: random.Random) -> list[float]:
    """Milliseconds between due and there, for each of them; that all came, and as they were sent, is made sure of."""
    delays = [draw.randrange(LONGEST_MS) for _ in range(COUNT)]
    sent: list[float] = []
    with ThreadPoolExecutor() as pool:
        arriving = pool.submit(consumed, installation, "orders", COUNT)
        for number, delay in enumerate(delays):
            sent.append(time.time())
            installation.schedule(opened, "orders", delay, b"%d\x00\xff" % number, **properties_of(number))
        arrived = arriving.result()
    assert sorted(one.number for one in arrived) == list(range(COUNT))
    for one in arrived:
        assert one.method.routing_key == "own.routing.key"
        assert_as_sent(one)
    return [1000 * (one.at - sent[one.number]) - delays[one.number] for one in arrived]


def consumed(installation: TopologyInstallation, queue: str, count: int) -> list[Arrived]:
    """On a connection of its own, so that nobody's publishing makes an arrival look late."""
    with installation.open_channel() as opened:
        return drained(opened, queue, count, deadline=120)


def properties_of(number: int) -> dict[str, Any]:
    return {
        "headers": {"number": number, "text": "ä"},
        "message_id": f"m{number}",
        "content_type": "application/x-any",
        "correlation_id": "c",
        "priority": 3,
        "type": "t",
        "app_id": "a",
        "reply_to": "r",
    }


def assert_as_sent(one: Arrived) -> None:
    """The broker's own account of the way is the only thing added."""
    wanted = properties_of(one.number)
    by_broker = ("x-death", "x-first-death-", "x-last-death-")
    headers = {key: value for key, value in (one.properties.headers or {}).items() if not key.startswith(by_broker)}
    assert headers == wanted.pop("headers")
    assert {name: getattr(one.properties, name) for name in wanted} == wanted
    assert one.properties.delivery_mode == 2


def test_a_tier_lets_a_message_go_that_is_due_before_one_of_higher_priority(installation: TopologyInstallation) -> None:
    """RabbitMQ 4.3 orders a quorum queue by priority, and expires each priority by itself."""
    with installation.open_channel() as opened:
        installation.attach(opened, "orders")
        installation.schedule(opened, "orders", 4_000, b"low", priority=0)
        time.sleep(3)  # within the TTL: the second message is due that much later
        installation.schedule(opened, "orders", 4_000, b"high", priority=9)
        assert [one.body for one in drained(opened, "orders", 2, deadline=60)] == [b"low", b"high"]


def test_a_full_destination_does_not_delay_another_ones_retries(installation: TopologyInstallation) -> None:
    """Sixty messages for a queue that rejects fill the 32 places of a dead-letter worker: that of its own relay."""
    with installation.open_channel() as opened:
        installation.attach(opened, "full", **{"x-max-length": 1, "x-overflow": "reject-publish"})
        installation.attach(opened, "healthy")
        for _ in range(60):
            installation.schedule(opened, "full", 2_000)
        for _ in range(20):
            installation.schedule(opened, "healthy", 2_000)
        started = time.time()
        first = drained(opened, "healthy", 20, deadline=30)
        for _ in range(20):
            installation.schedule(opened, "healthy", 2_000)
        again = time.time()
        second = drained(opened, "healthy", 20, deadline=30)

    assert (len(first), len(second)) == (20, 20)
    assert first[-1].at - started < 2 + STALL_SECONDS
    assert second[-1].at - again < 2 + STALL_SECONDS


def test_a_ladder_tier_deleted_by_hand_makes_no_message_early(installation: TopologyInstallation) -> None:
    with installation.open_channel() as opened:
        installation.attach(opened, "orders")
        opened.queue_delete("retry.ladder.1.3s")
        installation.schedule(opened, "orders", 3_000, b"has no tier")
        installation.schedule(opened, "orders", 1_000, b"has one")
        unroutable = drained(opened, "retry.unroutable", 1, deadline=30)
        arrived = drained(opened, "orders", 1, deadline=30)
        arrived += drained(opened, "orders", 1, deadline=4)

    assert [one.body for one in unroutable] == [b"has no tier"]
    assert [one.body for one in arrived] == [b"has one"]


def test_a_cancelled_message_goes_to_the_cancelled_queue_and_nowhere_else(installation: TopologyInstallation) -> None:
    with installation.open_channel() as opened:
        installation.attach(opened, "orders")
        installation.schedule(opened, "orders", 1_000, b"cancelled")
        opened.queue_bind("retry.cancelled", "retry.gate.cancelled", "~id:6f1c:1")

        assert [one.body for one in drained(opened, "retry.cancelled", 1, deadline=30)] == [b"cancelled"]
        assert drained(opened, "orders", 1, deadline=1) == []
        assert drained(opened, "retry.audit", 1, deadline=1) == []


def test_every_return_leaves_its_proof_in_the_tap(installation: TopologyInstallation) -> None:
    with installation.open_channel() as opened:
        installation.attach(opened, "orders")
        installation.schedule(opened, "orders", 250, b"one")

        assert [one.body for one in drained(opened, "orders", 1, deadline=30)] == [b"one"]
        assert [one.body for one in drained(opened, "retry.audit", 1, deadline=30)] == [b"one"]


def test_a_destination_that_was_never_bound_ends_in_unroutable(installation: TopologyInstallation) -> None:
    with installation.open_channel() as opened:
        installation.schedule(opened, "nobody", 250, b"unroutable")

        assert [one.body for one in drained(opened, "retry.unroutable", 1, deadline=30)] == [b"unroutable"]


def test_a_tier_that_is_not_declared_gives_the_message_back_at_once(installation: TopologyInstallation) -> None:
    returned: list[bytes] = []

    def give_back(_channel: BlockingChannel, _method: object, _properties: object, body: bytes) -> None:
        returned.append(body)

    def heard() -> None:
        opened.connection.process_data_events(0.1)
        assert returned == [b"no such tier"]

    with installation.open_channel() as opened:
        opened.add_on_return_callback(give_back)
        installation.send(opened, "orders", ("~in:3s", *installation.way(0)[1:]), b"no such tier")
        eventually(heard)
