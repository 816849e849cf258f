"""Each message of a batch has its own outcome, and a lost connection is one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pika.adapters.blocking_connection import BlockingChannel

from tarry.amqp.field_tables import entry
from tarry.amqp.properties import PERSISTENT, Properties
from tarry.amqp.publisher import Message, Publisher, PublishOutcome
from tarry.amqp.url import Address
from tests.support.proxy import Proxy
from tests.support.spaces import Vhost

QUORUM = {"x-queue-type": "quorum"}


def message(key: str, number: int, *, body: bytes = b"body", marked: bool = True) -> Message:
    headers = entry("tarry-id", f"id-{number}") + entry("tarry-round", 1) if marked else b""
    return Message("", key, Properties(headers=headers, delivery_mode=PERSISTENT), body, f"id-{number}:1")


async def publish(address: Address, messages: list[Message]) -> list[PublishOutcome]:
    publisher = await Publisher.open(address, "test")
    try:
        return await publisher.publish(messages)
    finally:
        await publisher.link.close()


def test_a_message_that_no_queue_takes_is_told_from_its_neighbours(address: Address, channel: BlockingChannel) -> None:
    channel.queue_declare("there", durable=True, arguments=QUORUM)
    keys = ["there", "nowhere", "there", "nowhere", "there"]
    outcomes = asyncio.run(publish(address, [message(key, number) for number, key in enumerate(keys)]))
    assert outcomes == [PublishOutcome.CONFIRMED if key == "there" else PublishOutcome.RETURNED for key in keys]


def test_a_returned_message_without_room_for_headers_is_never_confirmed(
    address: Address, channel: BlockingChannel
) -> None:
    channel.queue_declare("there", durable=True, arguments=QUORUM)
    messages = [
        message("there", 1, body=b"one", marked=False),
        message("nowhere", 2, body=b"two", marked=False),
    ]
    assert asyncio.run(publish(address, messages)) == [PublishOutcome.CONFIRMED, PublishOutcome.RETURNED]


def test_a_full_queue_says_no_to_some(address: Address, channel: BlockingChannel) -> None:
    full = {"x-max-length": 5, "x-overflow": "reject-publish"}
    channel.queue_declare("full", durable=True, arguments=QUORUM | full)

    async def until_refused() -> set[PublishOutcome]:
        found: set[PublishOutcome] = set()
        publisher = await Publisher.open(address, "test")
        for number in range(200):
            found |= set(await publisher.publish([message("full", number)]))
            if PublishOutcome.NACKED in found:
                break
        await publisher.link.close()
        return found

    assert asyncio.run(until_refused()) == {PublishOutcome.CONFIRMED, PublishOutcome.NACKED}


def test_thousands_in_flight_are_all_confirmed(address: Address, channel: BlockingChannel) -> None:
    channel.queue_declare("there", durable=True, arguments=QUORUM)

    async def several() -> list[PublishOutcome]:
        publisher = await Publisher.open(address, "test")
        batches = [publisher.publish([message("there", number) for number in range(700)]) for _ in range(5)]
        found = [outcome for outcomes in await asyncio.gather(*batches) for outcome in outcomes]
        await publisher.link.close()
        return found

    assert asyncio.run(several()) == [PublishOutcome.CONFIRMED] * 3_500
    assert channel.queue_declare("there", passive=True).method.message_count == 3_500


def test_a_body_of_many_frames_arrives_whole(address: Address, channel: BlockingChannel) -> None:
    channel.queue_declare("there", durable=True, arguments=QUORUM)
    large = bytes(range(256)) * 4_096 * 3
    assert asyncio.run(publish(address, [message("there", 1, body=large)])) == [PublishOutcome.CONFIRMED]
    assert channel.basic_get("there", auto_ack=True)[2] == large


def test_when_the_connection_is_cut_the_outcome_is_unknown(
    vhost: Vhost, channel: BlockingChannel, proxy: Callable[[str], Proxy]
) -> None:
    channel.queue_declare("there", durable=True, arguments=QUORUM)
    wire = proxy(vhost.amqp_url)

    async def cut_midway() -> list[PublishOutcome]:
        publisher = await Publisher.open(Address.parse(vhost.through(wire.port)), "test")
        await asyncio.to_thread(wire.blackhole)
        waiting = asyncio.create_task(publisher.publish([message("there", number) for number in range(3)]))
        await asyncio.sleep(0)
        await asyncio.to_thread(wire.cut)
        found = await waiting
        assert await publisher.publish([message("there", 9)]) == [PublishOutcome.UNKNOWN]
        await publisher.link.close()
        return found

    assert asyncio.run(cut_midway()) == [PublishOutcome.UNKNOWN] * 3


def test_a_channel_that_the_broker_closes_ends_the_link_with_the_reason(address: Address) -> None:
    async def to_no_exchange() -> tuple[list[PublishOutcome], str]:
        publisher = await Publisher.open(address, "test")
        outcomes = await publisher.publish([Message("no.such.exchange", "k", Properties(), b"", "t")])
        reason = await publisher.link.closed
        await publisher.link.close()
        return outcomes, reason

    outcomes, reason = asyncio.run(to_no_exchange())
    assert outcomes == [PublishOutcome.UNKNOWN]
    assert "no.such.exchange" in reason
