"""The user that the service runs as, used by an attacker: the broker refuses everything beyond its rights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict

import pika
import pytest
from httpx import HTTPStatusError
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ProbableAccessDeniedError

from tarry.embedded import management
from tarry.topology.load import load
from tarry.topology.model import Topology
from tarry.topology.rights import router_rights
from tests.support.installation import QUORUM, Installation
from tests.support.spaces import SharedBroker

ACCESS_REFUSED = 403
Try = Callable[[BlockingChannel], object]


@pytest.fixture
def topology(installation: Installation) -> Topology:
    """Which queues may be returned to is limited, as it should be where rights matter."""
    return load(installation.folder).model_copy(update={"destinations": ("orders*",)})


@pytest.fixture
def intruder(broker: SharedBroker, installation: Installation, topology: Topology) -> Iterator[str]:
    """The address of somebody with the router's login."""
    name = f"router-{installation.address.vhost}"
    broker.api(f"users/{name}", method="PUT", body={"password": "pw", "tags": ""})
    installation.api(f"permissions/{{vhost}}/{name}", method="PUT", body=asdict(router_rights(topology)))
    for queue in ("orders", "payroll"):
        installation.channel.queue_declare(queue, durable=True, arguments=QUORUM)
        installation.channel.basic_publish("", queue, b"somebody's")
    yield f"amqp://{name}:pw@{installation.amqp_url.rpartition('@')[2]}"
    broker.api(f"users/{name}", method="DELETE")


TRIES: dict[str, Try] = {
    "declare a queue": lambda channel: channel.queue_declare("mine", durable=True),
    "declare one in tarry's names": lambda channel: channel.queue_declare("retry.mine", durable=True),
    "declare a queue of its own kind": lambda channel: channel.queue_declare("", exclusive=True),
    "declare an exchange": lambda channel: channel.exchange_declare("mine", "fanout", durable=True),
    "delete a tier": lambda channel: channel.queue_delete("retry.delay.5m"),
    "delete the request queue": lambda channel: channel.queue_delete("retry.scheduled"),
    "delete a user's queue": lambda channel: channel.queue_delete("orders"),
    "delete an exchange": lambda channel: channel.exchange_delete("retry.delay"),
    "empty a tier": lambda channel: channel.queue_purge("retry.delay.5m"),
    "empty a user's queue": lambda channel: channel.queue_purge("orders"),
    "read a user's queue": lambda channel: channel.basic_get("orders"),
    "read a queue that it may not even return to": lambda channel: channel.basic_get("payroll"),
    "read a tier": lambda channel: channel.basic_get("retry.delay.5m"),
    "consume a user's queue": lambda channel: channel.basic_consume("payroll", lambda *_: None),
    "bind a queue that it may not return to": lambda channel: channel.queue_bind("payroll", "retry.deliver", "x"),
    "bind a user's queue to a user's exchange": lambda channel: channel.queue_bind("orders", "amq.topic", "#"),
    "tap a user's exchange": lambda channel: channel.queue_bind("retry.cancelled", "amq.topic", "#"),
    "unbind what is not its own": lambda channel: channel.queue_unbind("payroll", "amq.topic", "x"),
    "publish to a user's exchange": lambda channel: _publish(channel, "amq.topic"),
    "publish to a queue straight": lambda channel: _publish(channel, ""),
    "publish past the gates": lambda channel: _publish(channel, "retry.arrive"),
    "publish past the last gate": lambda channel: _publish(channel, "retry.home"),
    "publish past the gates as if released": lambda channel: _publish(channel, "retry.recheck.cancelled"),
    "bind exchanges": lambda channel: channel.exchange_bind("retry.deliver", "amq.topic", "#"),
}


def _publish(channel: BlockingChannel, exchange: str) -> None:
    channel.confirm_delivery()
    channel.basic_publish(exchange, "payroll", b"forged", mandatory=True)


def outcome(attempt: Try, channel: BlockingChannel) -> object:
    """The code that the broker closed the channel with."""
    try:
        return f"allowed: {attempt(channel)}"
    except ChannelClosedByBroker as refused:
        return refused.reply_code


def test_it_is_refused(intruder: str, installation: Installation) -> None:
    with pika.BlockingConnection(pika.URLParameters(intruder)) as connection:
        for what, attempt in TRIES.items():
            assert (what, outcome(attempt, connection.channel())) == (what, ACCESS_REFUSED)
            assert (what, installation.depth("orders"), installation.depth("payroll")) == (what, 1, 1)
            assert (what, installation.depth("retry.delay.5m")) == (what, 0)


def test_it_cannot_enter_another_vhost_nor_the_management_api(intruder: str, installation: Installation) -> None:
    elsewhere = intruder.rpartition("/")[0] + "/%2F"
    with pytest.raises(ProbableAccessDeniedError):
        pika.BlockingConnection(pika.URLParameters(elsewhere))
    name = intruder.removeprefix("amqp://").partition(":")[0]
    web = f"http://{name}:pw@{installation.management_url.rpartition('@')[2]}"
    with pytest.raises(HTTPStatusError, match="401"):
        management.request(web, "overview", method="GET", body=None, timeout=10)


def test_what_it_is_for_it_may(intruder: str, installation: Installation) -> None:
    """Or the test above would be passed by a user who may do nothing at all."""
    with pika.BlockingConnection(pika.URLParameters(intruder)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("retry.review", "x", b"for a person", mandatory=True)
        channel.queue_bind("orders", "retry.deliver", "~to:orders")
        channel.queue_bind("retry.cancelled", "retry.gate.cancelled", "~id:1:1")
        assert channel.basic_get("manual-review.pending", auto_ack=True)[2] == b"for a person"
        assert channel.basic_get("retry.scheduled")[0] is None
