from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pika
import pika.exceptions
import pytest

from tarry.embedded import management
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from tarry import embedded
    from tarry.embedded.node import Node

ARGUMENTS = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 3}


def publish(node: Node) -> None:
    """Once the queue has chosen a leader among those who are left."""
    wait_for(lambda: is_accepted(node), what=f"a publish to {node.name} to be confirmed")


def is_accepted(node: Node) -> bool:
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(node.amqp_url))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        try:
            channel.basic_publish("", "shared", b"", pika.BasicProperties(delivery_mode=2))
        except pika.exceptions.NackError:
            return False
        return True


def running_nodes(node: Node) -> int:
    return sum(bool(other["running"]) for other in management.request(node.management_url, "nodes"))


@pytest.mark.chaos
def test_a_killed_node_and_an_isolated_one_are_not_missed(cluster: embedded.EmbeddedCluster) -> None:
    assert len(cluster) == len(list(cluster)) == 3
    first, second, third = cluster
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(first.amqp_url))) as connection:
        connection.channel().queue_declare("shared", durable=True, arguments=ARGUMENTS)
    queue = management.request(first.management_url, "queues/%2F/shared")
    assert sorted(queue["members"]) == sorted(node.name for node in cluster)

    first.kill()
    publish(second)
    first.start()
    wait_for(lambda: running_nodes(first) == 3, what="the killed node to be back in the cluster")

    cluster.isolate(third)
    assert third.ctl("eval", "nodes().").strip() == "[]"
    publish(second)
    cluster.heal()
    assert third.ctl("eval", "length(nodes()).").strip() == "2"
    publish(cluster[0])
