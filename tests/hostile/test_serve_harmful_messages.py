"""Header bombs, deep nesting, huge numbers, forged unroutable messages and reports, against the real process.

The router keeps running, each bad message is in review with a reason, memory does not grow, and the valid messages
between them are on time.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tarry.amqp.properties import Properties
from tests.acceptance.test_serve_bad_requests import drain, reason_of
from tests.support.installation import Installation
from tests.support.router import Router
from tests.support.waiting import wait_for
from tests.unit.contract.wire import array, counted, headers, named, table

pytestmark = pytest.mark.timeout(300)

REVIEW = "manual-review.pending"
GOOD = named("original_queue", "quick.good")
UUID = "24e9476b-f4f5-5044-8227-4c112216f4bc"
ROUNDS = 30
MOST_GROWTH = 300 << 20
"""Bytes of memory; a batch of header bombs took gigabytes when all of it was taken apart."""


def nested(levels: int) -> bytes:
    """As deep as fits one frame: five bytes for each level. A broker reads it recursively itself."""
    return b"".join(b"A" + struct.pack(">I", 5 * (levels - level - 1)) for level in range(levels))


TINY = b"".join(b"\x03" + one.to_bytes(3, "big") + b"V" for one in range(20_000))
"""Each with another name: newer brokers keep only one of several that have the same."""

BOMBS: dict[str, tuple[bytes, str]] = {
    "tiny headers": (GOOD + TINY, "more than 4000 entries"),
    "a thousand names": (b"".join(named(f"n{one}", one) for one in range(5_000)), "more than 4000 entries"),
    "deep arrays": (named("deep", nested(2_000)), "no origin"),
    "a deep count": (GOOD + named("retry_count", nested(1_000)), "must be a whole number"),
    "a deep death": (named("x-death", nested(500)), "no origin"),
    "many deaths": (named("x-death", array(*[counted(b"F", b"")] * 20_000)), "more than 4096 items"),
    "a huge count": (GOOD + named("retry_count", 2**63 - 1), "must be from 0 to 1000"),
    "the smallest count": (GOOD + named("retry_count", -(2**63)), "must be from 0 to 1000"),
    "a moment past all time": (GOOD + named("next_retry_at_ms", 2**62), "must be from 0 to"),
    "a float past all integers": (GOOD + named("max_retries", b"d" + struct.pack(">d", 1e308)), "must be from 0"),
    "a number of 5,000 digits": (GOOD + named("retry_after_ms", "9" * 5_000), "must be a whole number"),
    "a reason of 100,000 characters": (
        GOOD + named("error_reason", "e" * 100_000) + named("error_class", "final"),
        "the error is final",
    ),
    "a table in a table": (GOOD + named("priority", table(named("a", table(named("b", "c"))))), "must be UTF-8 text"),
    "a queue with a line end": (named("original_queue", "ret\nry.audit"), "cannot be the name"),
}


def publish(channel: BlockingChannel, key: str, about: Properties, body: bytes, exchange: str = "") -> None:
    channel.basic_publish(exchange, key, body, about)  # type: ignore[arg-type] # stands in for pika's


def resident(router: Router) -> int:
    """Bytes of memory that the process has now."""
    status = Path(f"/proc/{router.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def test_a_hail_of_bombs_with_good_ones_between(installation: Installation, start: Callable[..., Router]) -> None:
    router = start().wait_ready()
    installation.declare("quick.good")
    installation.request("quick.good", "warm-up")
    installation.take_ids("quick.good", 1)
    before, peak = resident(router), 0
    expected = {}
    for number in range(ROUNDS):
        for name, (raw, reason) in BOMBS.items():
            message_id = f"{name} {number}"
            expected[message_id] = reason
            publish(
                installation.channel, "retry.scheduled", Properties(headers=raw, message_id=message_id.encode()), b"x"
            )
        installation.request("quick.good", f"good {number}")
        peak = max(peak, resident(router))

    def left() -> int:
        nonlocal peak
        peak = max(peak, resident(router))
        return len(expected) - installation.depth(REVIEW)

    wait_for(lambda: left() == 0, deadline=120, what=f"{len(expected)} messages in review")
    assert sorted(installation.take_ids("quick.good", ROUNDS)) == sorted(f"good {number}" for number in range(ROUNDS))
    for one in drain(installation.address, REVIEW, len(expected)):
        name = (one.properties.message_id or b"").decode()
        assert expected[name] in reason_of(one), (name, reason_of(one))
    assert peak - before < MOST_GROWTH, f"memory grew by {(peak - before) >> 20} MiB"
    assert router.metric("tarry_reconnects_total") == 0
    assert router.ready() == (200, [])


UNROUTABLE: dict[str, dict[str, bytes | str | int]] = {
    "an id that is none": {"tarry-id": "x" * 300},
    "a round past all rounds": {"tarry-round": 2**53},
    "a moment past all time": {"tarry-due-ms": 2**53},
    "a queue of tarry's own": {"tarry-queue": "retry.audit"},
    "a queue with a line end": {"tarry-queue": "ret\nry.audit"},
    "a count past all counts": {"tarry-count": 2**40},
    "a reserved key": {"tarry-key": "~to:payroll"},
}


def test_a_forged_unroutable_message_goes_to_review_and_delays_no_other(
    installation: Installation, start: Callable[..., Router]
) -> None:
    router = start().wait_ready()
    installation.declare("quick.good")
    sound: dict[str, bytes | str | int] = {
        "tarry-id": UUID,
        "tarry-round": 1,
        "tarry-due-ms": int(time.time() * 1000),
        "tarry-queue": "quick.good",
        "tarry-count": 1,
    }
    for name, forged in UNROUTABLE.items():
        about = Properties(headers=headers(sound | forged), message_id=name.encode())
        publish(installation.channel, "retry.unroutable", about, b"forged")
    publish(installation.channel, "retry.unroutable", Properties(headers=headers(sound), message_id=b"true"), b"true")
    assert installation.take_ids("quick.good", 1, deadline=30) == ["true"]
    found = drain(installation.address, REVIEW, len(UNROUTABLE))
    assert {(one.properties.message_id or b"").decode() for one in found} == set(UNROUTABLE)
    assert all("unroutable" in reason_of(one) for one in found)
    assert installation.depth("retry.audit") == 0
    bound = {one["destination"] for one in installation.api("bindings/{vhost}") if one["source"] == "retry.deliver"}
    assert bound == {"quick.good"}
    assert router.ready() == (200, [])


REPORTS = {
    "deep": b'{"outcomes":' + b"[" * 50_000,
    "deep in a row": b'{"outcomes":[' + b"[" * 900 + b"]" * 900 + b"]}",
    "no JSON": b"\xff\xfe",
    "huge numbers": json.dumps({"outcomes": [{"id": UUID, "round": 10**30, "at_ms": 1}]}).encode(),
    "wrong types": b'{"outcomes":[{"id":[],"round":{}}]}',
    "too many": json.dumps({"outcomes": [{}] * 10_001}).encode(),
}


SIGHTING: dict[str, bytes | str | int] = {"tarry-id": UUID, "tarry-round": 1, "tarry-due-ms": 1}
SIGHTINGS: tuple[dict[str, bytes | str | int], ...] = (
    {"tarry-id": "x" * 300},
    {"tarry-id": f"urn:uuid:{UUID}"},
    {"tarry-round": 2**53},
    {"tarry-due-ms": 2**53},
    {"tarry-due-ms": -1},
    {"tarry-queue": "a\x00b"},
    {"tarry-queue": b"x\x00\x00\x00\x02\xff\xfe"},
    {"tarry-count": nested(50)},
    {"x-death": array(table(named("time", b"T" + struct.pack(">Q", 2**63 - 1))))},
    {"x-first-death-queue": "retry.delay." + "9" * 5_000},
)


def test_the_audit_goes_on_whatever_comes_to_the_tap(installation: Installation, start: Callable[..., Router]) -> None:
    """A deeply nested report once stopped the tap for everybody, for good."""
    router = start().wait_ready()
    queue = installation.declare("quick.good")
    for exchange in ("retry.reports", "retry.spool", "retry.arrive"):
        for body in REPORTS.values():
            publish(installation.channel, "", Properties(), body, exchange)
        for forged in SIGHTINGS:
            about = Properties(headers=headers(SIGHTING | forged))
            publish(installation.channel, "", about, b"{}", exchange)
        message = f"after {exchange}"
        installation.request(queue, message)
        assert installation.take_ids(queue, 1) == [message]
        wait_for(partial(has_returned, installation, message), deadline=60, what=f"the tap to see {message}")
        wait_for(lambda: installation.depth("retry.audit") == 0, deadline=60, what="the tap to be done")
    assert router.logged("connection lost") == []


def has_returned(installation: Installation, message_id: str) -> bool:
    return returns_of(installation, message_id) == 1


def returns_of(installation: Installation, message_id: str) -> int:
    """By message: forged copies with an id of some retry's look like returns, and nobody can tell."""
    asked = (
        "select count(*) from transition t join retry r on r.id = t.retry_id where r.message_id = %s and t.state = %s"
    )
    with psycopg.connect(installation.dsn) as connection:
        row = connection.execute(asked, (message_id, "returned")).fetchone()
    assert row is not None
    return int(row[0])
