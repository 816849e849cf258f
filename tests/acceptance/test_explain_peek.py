"""`tarry explain --peek`: the first message of a live queue, read as bytes, and still there afterwards."""

from __future__ import annotations

import asyncio

import pika
import pytest

from tarry.amqp.delivery import Delivery
from tarry.amqp.properties import Properties
from tarry.amqp.url import Address
from tarry.errors import BrokerError
from tarry.operations import explain
from tests.acceptance.test_serve_bad_requests import SURPRISES, entries_of
from tests.support.spaces import Vhost
from tests.support.waiting import wait_for


def peek(address: Address, queue: str) -> Delivery | None:
    return asyncio.run(explain.peek(address, queue))


def test_a_peek_leaves_the_message_where_it_was(vhost: Vhost) -> None:
    address = Address.parse(vhost.amqp_url, management_url=vhost.management_url)
    with pika.BlockingConnection(pika.URLParameters(vhost.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True, arguments={"x-queue-type": "quorum"})
        assert peek(address, "orders") is None
        channel.confirm_delivery()
        about = Properties(headers=SURPRISES, message_id=b"m-1", delivery_mode=2)
        channel.basic_publish("", "orders", b"work", about)  # type: ignore[arg-type] # stands in for pika's own

        for again in (False, True):
            found = wait_for(lambda: peek(address, "orders"), what="the message to be back in its queue")
            assert found is not None
            assert (found.body, found.routing_key, found.redelivered) == (b"work", "orders", again)
            assert found.properties.message_id == b"m-1"
            assert entries_of(found.properties.headers or b"") >= entries_of(SURPRISES)
        wait_for(lambda: channel.queue_declare("orders", passive=True).method.message_count == 1)


def test_a_queue_that_is_not_there_is_an_error_that_says_so(vhost: Vhost) -> None:
    with pytest.raises(BrokerError, match="no queue 'nowhere'"):
        peek(Address.parse(vhost.amqp_url, management_url=vhost.management_url), "nowhere")
