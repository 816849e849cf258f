"""A request with an expiration of its own, copied from the failed message, while no router is there to take it."""

from __future__ import annotations

import pika

from tarry.amqp.url import Address
from tarry.topology.apply import apply
from tarry.topology.load import load, shipped
from tests.support.spaces import Vhost
from tests.support.waiting import wait_for


def test_an_expired_request_goes_to_review(vhost: Vhost) -> None:
    apply(load(shipped()), Address.parse(vhost.amqp_url, management_url=vhost.management_url))
    with pika.BlockingConnection(pika.URLParameters(vhost.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        about = pika.BasicProperties(delivery_mode=2, expiration="100", headers={"original_queue": "orders"})
        channel.basic_publish("", "retry.scheduled", b"x", about, mandatory=True)

        def in_review() -> bool:
            return bool(channel.queue_declare("manual-review.pending", passive=True).method.message_count)

        wait_for(in_review, what="the expired request in review")
