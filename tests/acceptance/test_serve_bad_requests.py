"""Whatever is sent to retry.scheduled: each bad request ends in review with a reason, and the good ones go on."""

from __future__ import annotations

import asyncio
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pika

from tarry.amqp.consumer import Consumer
from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import Field, scan, walk
from tarry.amqp.properties import Properties
from tarry.amqp.url import Address
from tests.acceptance.shipped import REVIEW, ShippedService, serving
from tests.support.spaces import Database, Vhost
from tests.support.waiting import wait_for
from tests.unit.contract.generated import KINDS, bad_request
from tests.unit.contract.wire import array, death, headers, named, table, text

GENERATED = int(os.environ.get("TARRY_BAD_REQUESTS", "2000"))
"""The full size is 10,000."""
ONE_GOOD_IN = 100
SURPRISES = headers(
    {
        "double": b"d" + struct.pack(">d", 0.1),
        "milliseconds": b"T" + struct.pack(">Q", 1_700_000_000_000_000),
        "not text": b"S\x00\x00\x00\x02\xff\xfe",
        "bytes": b"x\x00\x00\x00\x02\x00\xff",
        "decimal": b"D\x02\x00\x00\x30\x39",
        "nothing": b"V",
        "nested": table(named("a", array(table(named("b", b"V")), text("c")))),
    }
)
"""What a client library would damage or trip over."""


@dataclass(frozen=True)
class Prepared:
    """A message of somebody's, with the key and exchange it is published with."""

    name: str
    headers: bytes = b""
    body: bytes = b"x"
    content_type: bytes | None = None
    exchange: str = ""
    key: str | bytes = "retry.scheduled"
    reason: str = ""


GOOD_QUEUE = named("original_queue", "good")
PREPARED = [
    Prepared("no origin", reason="no origin"),
    Prepared("an own queue", named("original_queue", "retry.audit"), reason="a queue of tarry's"),
    Prepared("a queue outside", named("original_queue", "payroll"), reason="outside the topology's `destinations`"),
    Prepared("a queue that is not there", named("original_queue", "good.gone"), reason="does not exist"),
    Prepared("a negative count", GOOD_QUEUE + named("retry_count", -1), reason="`retry_count` is -1"),
    Prepared("an absurd count", GOOD_QUEUE + named("retry_count", 2**63 - 1), reason="must be from 0 to 1000"),
    Prepared("a wait of centuries", GOOD_QUEUE + named("retry_after_ms", 2**53), reason="longer than a year"),
    Prepared("a bad type", GOOD_QUEUE + named("retry_count", table()), reason="must be a whole number"),
    Prepared("broken protobuf", b"", b"\xff\xff", b"application/x-protobuf", reason="cannot be read"),
    Prepared("broken JSON", b"", b"[" * 100_000, b"application/vnd.tarry.retry+json", reason="cannot be read"),
    Prepared("surprises", SURPRISES, reason="no origin"),
    Prepared("a large body", GOOD_QUEUE, bytes(16 * 2**20), reason="its body has 16.0 MiB"),
    Prepared("our prefix", GOOD_QUEUE, exchange="retry.intake", key="~to:good", reason="reserved for tarry"),
    Prepared("a key that is no text", GOOD_QUEUE, exchange="retry.intake", key=b"\xff\xfe", reason="not UTF-8 text"),
    Prepared("a NUL in the key", GOOD_QUEUE + named("original_routing_key", "a\x00"), reason="contains a NUL"),
    Prepared(
        "an expired message", named("x-death", array(death("good", "expired"))), reason="does not count as a failure"
    ),
    Prepared("a foreign death", named("x-death", array(death("good", keys=[b"\xff"]))), reason="is not UTF-8 text"),
    Prepared("large headers", GOOD_QUEUE + named("big", "b" * 125_000), reason="leave no room"),
    Prepared("headers near the frame", GOOD_QUEUE + named("big", "b" * 130_700), reason="leave no room"),
    Prepared("a wrong class", GOOD_QUEUE + named("error_class", "fatal"), reason="use one of final, retryable"),
    Prepared(
        "a forged id", GOOD_QUEUE + named("tarry-id", "x") + named("tarry-queue", "good"), reason="is not a retry id"
    ),
    Prepared("a forged probe", named("tarry-probe", "retry.probe.x"), reason="no origin"),
]


def test_thousands_of_bad_requests_and_the_good_ones_between_them(
    vhost: Vhost, database: Database, tmp_path: Path
) -> None:
    with serving(vhost, database, tmp_path, scale=0.1, destinations=("good", "good.*")) as service:
        service.queue("good")
        address = Address.parse(vhost.amqp_url, management_url=vhost.management_url)

        sent = send(vhost, service)

        wait_for(lambda: service.depth(REVIEW) == len(sent), deadline=120, what=f"{len(sent)} messages in review")
        assert service.metric("tarry_reconnects_total") == 0
        reviewed = {(one.properties.message_id or b"").decode(): one for one in drain(address, REVIEW, len(sent))}
        assert set(reviewed) == set(sent)
        for name, delivery in reviewed.items():
            assert delivery.body == sent[name], name
            assert reason_of(delivery), name
        for prepared in PREPARED:
            assert prepared.reason in reason_of(reviewed[prepared.name]), prepared.name
        assert entries_of(reviewed["surprises"].properties.headers or b"") >= entries_of(SURPRISES)

        assert_good_ones_returned(drain(address, "good", GENERATED // ONE_GOOD_IN))
        assert service.depth("retry.scheduled") == 0


def send(vhost: Vhost, service: ShippedService) -> dict[str, bytes]:
    """All of them, mixed; returns the bodies of the bad ones by message id."""
    random, sent, seen = Random(20_240), {}, set()
    with pika.BlockingConnection(pika.URLParameters(vhost.amqp_url)) as connection:
        channel = connection.channel()

        def publish(exchange: str, key: str | bytes, properties: Properties, body: bytes) -> None:
            channel.basic_publish(exchange, key, body, properties)  # type: ignore[arg-type] # stands in for pika's

        for one in PREPARED:
            about = Properties(headers=one.headers, content_type=one.content_type, message_id=one.name.encode())
            publish(one.exchange, one.key, about, one.body)
            sent[one.name] = one.body
        for serial in range(GENERATED):
            bad = bad_request(random, serial)
            publish(bad.exchange, bad.key, bad.properties, bad.body)
            sent[f"bad-{serial}"] = bad.body
            seen.add(bad.kind)
            if serial % ONE_GOOD_IN == 0:
                good = Properties(headers=SURPRISES + GOOD_QUEUE, message_id=f"good-{serial}".encode())
                publish("", "retry.scheduled", good, b"\x00good\xff")
    assert seen == KINDS
    return sent


def assert_good_ones_returned(returned: list[Delivery]) -> None:
    ids = {(one.properties.message_id or b"").decode() for one in returned}
    assert ids == {f"good-{serial}" for serial in range(0, GENERATED, ONE_GOOD_IN)}
    for one in returned:
        assert one.body == b"\x00good\xff"
        assert entries_of(one.properties.headers or b"") >= entries_of(SURPRISES + GOOD_QUEUE)
        assert header(one, "tarry-count").integer() == 1


def drain(address: Address, queue: str, count: int) -> list[Delivery]:
    """So many messages, as bytes: a client that decodes headers could not read these."""

    async def take() -> list[Delivery]:
        consumer = await Consumer.open(address, queue, "test")
        found: list[Delivery] = []
        async for batch in consumer.batches():
            found += batch
            consumer.ack([delivery.tag for delivery in batch])
            if len(found) >= count:
                break
        await consumer.link.close()
        return found

    return asyncio.run(asyncio.wait_for(take(), 120))


def entries_of(table: bytes) -> set[bytes]:
    """To the byte, but in any order: a broker that dead-letters a message sorts its headers."""
    return {table[start:end] for _, start, _, end in scan(table)}


def reason_of(delivery: Delivery) -> str:
    return header(delivery, "review_reason").text() or ""


def header(delivery: Delivery, name: str) -> Field:
    return dict(walk(delivery.properties.headers or b""))[name.encode()]
