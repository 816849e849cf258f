"""The connection is cut before a request is published, before it is confirmed, and before the message is acknowledged.

CLIENT_CUTS says how often for each adapter; `make test-cuts` runs it at full size.
"""

from __future__ import annotations

import os
import sys
from collections import Counter

import pika
import pytest

from tarry.client import Attempt
from tests.integration.client.adapters import Consumer
from tests.integration.client.cutting import STEPS, CuttingProxy
from tests.integration.client.installation import ClientInstallation
from tests.support.spaces import address_of, with_port
from tests.support.waiting import wait_for

CUTS = int(os.environ.get("CLIENT_CUTS", "15"))
QUEUE = "work"
AHEAD = 40
"""Messages that wait while the cutting goes on: more than a consumer takes at a time."""

pytestmark = pytest.mark.timeout(300 + CUTS * 2)


def handle(_attempt: Attempt, _body: bytes) -> None:
    raise ValueError("as always")


def test_nothing_is_lost(
    installation: ClientInstallation, adapter: type[Consumer], capsys: pytest.CaptureFixture[str]
) -> None:
    # A message that is taken and cut off again and again must not meet the broker's own limit.
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}
    installation.channel.queue_declare(QUEUE, durable=True, arguments=arguments)
    requests: Counter[str] = Counter()
    sent = 0

    def collect() -> int:
        requests.update(str(one.properties.message_id) for one in installation.take_all("retry.scheduled"))
        return len(requests)

    with CuttingProxy(address_of(installation.amqp_url), CUTS) as proxy:
        with adapter(with_port(installation.amqp_url, proxy.port), QUEUE, handle):

            def is_cut() -> bool:
                nonlocal sent
                for _ in range(AHEAD - installation.depth(QUEUE)):
                    installation.channel.basic_publish("", QUEUE, b"", properties(sent))
                    sent += 1
                collect()
                return proxy.is_done

            wait_for(is_cut, deadline=30 + CUTS, what=f"{CUTS} cuts")
            wait_for(lambda: collect() >= sent, deadline=60, what="a request for every message")
        wait_for(lambda: installation.depth(QUEUE) == 0, what="every message to be acknowledged")
        collect()
    assert set(proxy.cuts) == set(STEPS)
    assert set(requests) == {str(number) for number in range(sent)}
    if "CLIENT_CUTS" in os.environ:
        cuts = ", ".join(f"{count} before {step}" for step, count in sorted(proxy.cuts.items()))
        told = f"{sent} messages, {CUTS} cuts ({cuts}): 0 lost, {requests.total() - sent} asked for twice"
        with capsys.disabled():
            sys.stdout.write(f"\n{adapter.__name__}: {told}\n")


def properties(number: int) -> pika.BasicProperties:
    return pika.BasicProperties(delivery_mode=2, message_id=str(number))
