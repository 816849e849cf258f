"""Batches close when they are full or a moment after their first message; what is not settled comes again."""

from __future__ import annotations

import asyncio

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from tarry.amqp import consumer as consuming
from tarry.amqp.consumer import Consumer
from tarry.amqp.delivery import Delivery
from tarry.amqp.url import Address
from tests.support.waiting import wait_for

QUORUM = {"x-queue-type": "quorum"}


def fill(channel: BlockingChannel, count: int, body: bytes = b"body") -> None:
    channel.queue_declare("work", durable=True, arguments=QUORUM)
    for number in range(count):
        channel.basic_publish("", "work", body, pika.BasicProperties(message_id=f"m{number}"))
    wait_for(lambda: depth(channel) == count)


def depth(channel: BlockingChannel) -> int:
    return int(channel.queue_declare("work", passive=True).method.message_count)


async def batches(address: Address, wanted: int, *, batch: int, prefetch: int = 100) -> list[list[Delivery]]:
    """So many batches, acknowledged one by one."""
    consumer = await Consumer.open(address, "work", "test", batch=batch, prefetch=prefetch)
    found: list[list[Delivery]] = []
    async for one in consumer.batches():
        found.append(one)
        consumer.ack([delivery.tag for delivery in one])
        if len(found) == wanted:
            break
    await consumer.link.close()
    return found


def test_no_batch_is_larger_than_asked_and_none_is_lost(address: Address, channel: BlockingChannel) -> None:
    fill(channel, 10)
    found = asyncio.run(asyncio.wait_for(_until(address, 10, batch=4), 20))
    assert max(map(len, found)) <= 4
    assert [one.properties.message_id for batch in found for one in batch] == [b"m%d" % n for n in range(10)]
    wait_for(lambda: depth(channel) == 0)


async def _until(address: Address, count: int, *, batch: int) -> list[list[Delivery]]:
    consumer = await Consumer.open(address, "work", "test", batch=batch)
    found: list[list[Delivery]] = []
    async for one in consumer.batches():
        found.append(one)
        consumer.ack([delivery.tag for delivery in one])
        if sum(map(len, found)) == count:
            break
    await consumer.link.close()
    return found


def test_large_bodies_make_small_batches(
    address: Address, channel: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "LARGEST_BATCH", 250)
    fill(channel, 6, body=bytes(100))
    found = asyncio.run(asyncio.wait_for(_until(address, 6, batch=50), 20))
    assert [len(batch) for batch in found if len(batch) > 2] == []


def test_an_ack_never_covers_what_is_still_being_worked_on(address: Address, channel: BlockingChannel) -> None:
    fill(channel, 6)

    async def settle_some() -> None:
        consumer = await Consumer.open(address, "work", "test", batch=6)
        tags: list[int] = []
        async for batch in consumer.batches():
            tags += [delivery.tag for delivery in batch]
            if len(tags) == 6:
                break
        consumer.ack(tags[3:])
        consumer.ack(tags[:1])
        await consumer.link.close()

    asyncio.run(asyncio.wait_for(settle_some(), 20))
    wait_for(lambda: depth(channel) == 2)
    left = [channel.basic_get("work", auto_ack=True)[1] for _ in range(2)]
    assert [one.message_id for one in left if one is not None] == ["m1", "m2"]


def test_what_is_requeued_comes_again_and_says_so(address: Address, channel: BlockingChannel) -> None:
    fill(channel, 1)

    async def twice() -> list[bool]:
        consumer = await Consumer.open(address, "work", "test")
        seen: list[bool] = []
        async for batch in consumer.batches():
            seen.append(batch[0].redelivered)
            if len(seen) == 2:
                break
            consumer.requeue([batch[0].tag])
        await consumer.link.close()
        return seen

    assert asyncio.run(asyncio.wait_for(twice(), 20)) == [False, True]


def test_headers_arrive_as_bytes_and_unharmed(address: Address, channel: BlockingChannel) -> None:
    channel.queue_declare("work", durable=True, arguments=QUORUM)
    about = pika.BasicProperties(headers={"text": "ä", "number": 1 << 40}, content_type="application/x", priority=3)
    channel.basic_publish("", "work", b"", about)
    (only,) = asyncio.run(asyncio.wait_for(batches(address, 1, batch=1), 20))[0]
    assert isinstance(only.properties.headers, bytes)
    assert "ä".encode() in only.properties.headers
    assert (only.properties.content_type, only.properties.priority, only.body) == (b"application/x", 3, b"")
    assert (only.exchange, only.routing_key) == ("", "work")


def test_a_queue_that_is_not_there_is_an_error_at_once(address: Address) -> None:
    async def from_nowhere() -> None:
        await Consumer.open(address, "nowhere", "test")

    with pytest.raises(ChannelClosedByBroker, match="nowhere"):
        asyncio.run(asyncio.wait_for(from_nowhere(), 20))


def test_a_deleted_queue_ends_the_batches_with_the_reason(address: Address, channel: BlockingChannel) -> None:
    channel.queue_declare("work", durable=True, arguments=QUORUM)

    async def until_deleted() -> str:
        consumer = await Consumer.open(address, "work", "test")
        await asyncio.to_thread(channel.queue_delete, "work")
        async for _ in consumer.batches():
            raise AssertionError("there was nothing to consume")
        reason = await consumer.link.closed
        await consumer.link.close()
        return reason

    assert "cancelled the consumer" in asyncio.run(asyncio.wait_for(until_deleted(), 20))
