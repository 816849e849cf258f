from __future__ import annotations

import threading
import time
from typing import Any, cast

import pika
import pytest

from tarry.amqp.management import Management
from tarry.errors import TopologyError, TopologyMismatchError
from tarry.topology.apply import apply
from tarry.topology.blueprint import blueprint
from tarry.topology.live import read_live
from tarry.topology.plan import make_plan
from tarry.topology.retire import SETTLING_SECONDS, close_entry, delete_empty, drain, prune
from tarry.topology.verify import verify
from tests.integration.topology.installation import TopologyInstallation, drained, small_topology
from tests.support.spaces import Vhost
from tests.support.waiting import wait_for

FEWER = small_topology(policy=[{"name": "default", "schedule": ["2s"], "max_retries": 2}])


def test_drain_waits_for_each_message_and_then_deletes_the_tier(installation: TopologyInstallation) -> None:
    seen: list[int] = []
    with installation.open_channel() as opened:
        installation.attach(opened, "orders")
        for _ in range(5):
            installation.schedule(opened, "orders", 8_000)
        sent = time.time()
        draining = threading.Thread(
            target=drain, args=(FEWER, installation.address, "retry.delay.8s", lambda left, _: seen.append(left))
        )
        draining.start()
        arrived = drained(opened, "orders", 5, deadline=30)
    draining.join()

    assert len(arrived) == 5
    assert all(one.at - sent > 7.9 for one in arrived)
    assert "retry.delay.8s" not in read_live(Management(installation.address)).queues
    assert max(seen) == 5


def test_prune_deletes_what_is_empty_and_closed_and_keeps_the_rest(installation: TopologyInstallation) -> None:
    with installation.open_channel() as opened:
        opened.queue_declare("retry.delay.9s", durable=True, arguments={"x-queue-type": "quorum"})
        opened.basic_publish("", "retry.delay.9s", b"by name")
        opened.exchange_declare("retry.ladder.9", "direct", durable=True)
    management = Management(installation.address)
    wait_for(lambda: read_live(management).depths["retry.delay.9s"], what="the broker's next count")

    first = prune(FEWER, installation.address)
    close_entry(FEWER, installation.address, "retry.delay.8s")
    second = prune(FEWER, installation.address)

    assert first.deleted == ("retry.ladder.9",)
    assert first.kept == {
        "retry.delay.8s": "still bound to retry.delay: tarry topology drain retry.delay.8s",
        "retry.delay.9s": "still holds 1 messages, which leave when they expire",
    }
    assert second.deleted == ("retry.delay.8s",)
    assert list(second.kept) == ["retry.delay.9s"]


def test_a_check_queue_that_no_policy_uses_is_left_over_and_drains(vhost: Vhost) -> None:
    policy = {"name": "all", "schedule": ["1s"], "max_retries": 1, "eligibility": {"at": "due", "answer_within": "1s"}}
    installation = TopologyInstallation(vhost, small_topology(policy=[policy])).apply()
    queue, keys = "retry.check.1s.all", ["~check:1s:all", "~to:orders"]
    with pytest.raises(TopologyError, match="remove its check from every policy"):
        drain(installation.topology, installation.address, queue)
    without = small_topology(policy=[policy | {"eligibility": None}])
    left = make_plan(installation.names, blueprint(without), read_live(Management(installation.address))).left_over
    assert [one.name for one in left] == [queue]
    with installation.open_channel() as opened:
        installation.attach(opened, "orders")
        opened.basic_publish("retry.arrive", "", b"x", pika.BasicProperties(headers={"BCC": cast("Any", keys)}))
        close_entry(without, installation.address, queue)
        assert installation.wait_message("orders")[1] == b"x"
        assert read_live(Management(installation.address)).bindings_to(queue) == []


def test_a_tier_in_use_is_not_drained(installation: TopologyInstallation) -> None:
    with pytest.raises(TopologyError, match="in use"):
        drain(installation.topology, installation.address, "retry.delay.8s")


def test_a_tier_that_somebody_opens_again_stops_the_drain(installation: TopologyInstallation) -> None:
    def open_again(_left: int, _seconds: float) -> None:
        apply(installation.topology, installation.address)

    with pytest.raises(TopologyMismatchError, match="somebody applied a topology that still has it"):
        drain(FEWER, installation.address, "retry.delay.8s", open_again)


def test_a_queue_that_got_a_message_after_all_is_never_deleted(installation: TopologyInstallation) -> None:
    with installation.open_channel() as opened:
        opened.queue_declare("retry.delay.9s", durable=True, arguments={"x-queue-type": "quorum"})
        opened.basic_publish("", "retry.delay.9s", b"late")
        wait_for(lambda: opened.queue_declare("retry.delay.9s", passive=True).method.message_count == 1)

        with pytest.raises(TopologyMismatchError, match="It was not deleted"):
            delete_empty(FEWER, installation.address, ["retry.delay.9s"])

        assert opened.queue_declare("retry.delay.9s", passive=True).method.message_count == 1


def test_a_message_that_is_stuck_on_its_way_out_counts_until_it_is_gone(installation: TopologyInstallation) -> None:
    """AMQP says the queue is empty; the broker's own count does not."""
    with installation.open_channel() as opened:
        opened.exchange_declare("retry.nowhere", "direct", durable=True)
        arguments = {
            "x-queue-type": "quorum",
            "x-message-ttl": 100,
            "x-overflow": "reject-publish",
            "x-dead-letter-exchange": "retry.nowhere",
            "x-dead-letter-strategy": "at-least-once",
        }
        opened.queue_declare("retry.delay.100ms", durable=True, arguments=arguments)
        opened.basic_publish("", "retry.delay.100ms", b"stuck")
        wait_for(lambda: opened.queue_declare("retry.delay.100ms", passive=True).method.message_count == 0)
    management = Management(installation.address)

    def counted() -> bool:
        return read_live(management).depths["retry.delay.100ms"] == 1

    wait_for(counted, deadline=SETTLING_SECONDS, what="a count within the time that drain waits for one")
    assert prune(installation.topology, installation.address).deleted == ()


def test_the_queue_of_a_webhook_that_is_gone_is_unbound_and_pruned(vhost: Vhost) -> None:
    hook = {"name": "one", "url": "https://example.com", "secret_env": "SECRET", "events": ["exhausted"]}
    topology = small_topology(events={"enabled": True}, webhook=[hook])
    installation = TopologyInstallation(vhost, topology).apply()
    assert verify(installation.topology, installation.address) == []
    installation.topology = small_topology(events={"enabled": True})
    installation.apply()

    done = prune(installation.topology, installation.address)
    queue = "tarry-webhooks.retry.one"
    assert done.deleted == (queue, f"retry.relay.{queue}", f"retry.held.{queue}")
    assert verify(installation.topology, installation.address) == []
