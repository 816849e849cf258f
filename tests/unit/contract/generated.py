"""Requests made by a generator: any delivery at all, and well-formed messages that are certainly bad requests."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import strategies as st

from tarry.amqp.delivery import Delivery
from tarry.amqp.properties import Properties
from tarry.contract.retry_pb2 import RetryMessage
from tests.unit.contract.wire import array, counted, death, entry_names, field_values, integer, named, table, text

CONTRACT = (
    *("original_queue", "original_exchange", "original_routing_key", "retry_count", "max_retries", "error_reason"),
    *(
        "error_type",
        "error_class",
        "retry_after_ms",
        "next_retry_at_ms",
        "priority",
        "job_type",
        "review_reason",
        "owner",
    ),
    *("tarry-id", "tarry-round", "tarry-count", "tarry-since-ms", "tarry-queue", "tarry-exchange", "tarry-key"),
    *("tarry-form", "tarry-via", "tarry-probe", "tarry-user-id", "tarry-priority", "x-death", "CC", "BCC"),
)
CONTENT_TYPES = (b"application/x-protobuf", b"application/vnd.tarry.retry+json", b"application/json", b"text/plain")

_telling = st.one_of(
    field_values,
    st.integers(-(2**63), 2**63 - 1).map(integer),
    st.text(max_size=20).map(text),
    st.sampled_from(["orders", "retry.audit", "final", "rate_limited", "24e9476b-f4f5-5044-8227-4c112216f4bc"]).map(
        text
    ),
    st.builds(
        lambda queue, reason, key: array(death(queue, reason, "", [key])),
        st.sampled_from(["orders", "retry.delay.8s", ""]) | st.text(max_size=5),
        st.sampled_from(["rejected", "expired", "delivery_limit"]),
        st.binary(max_size=5),
    ),
)
_names = st.sampled_from(CONTRACT).map(str.encode) | entry_names
_envelopes = st.builds(
    lambda **fields: RetryMessage(**fields).SerializeToString(),
    message_id=st.text(max_size=10),
    original_payload=st.binary(max_size=10),
    original_queue=st.text(max_size=10),
    retry_count=st.integers(-(2**31), 2**31 - 1),
    max_retries=st.none() | st.integers(-(2**31), 2**31 - 1),
    next_retry_at_ms=st.none() | st.integers(-(2**63), 2**63 - 1),
)
_shorts = st.none() | st.binary(max_size=255)

deliveries = st.builds(
    Delivery,
    body=st.binary(max_size=50) | _envelopes,
    properties=st.builds(
        Properties,
        headers=st.lists(st.builds(named, _names, _telling), max_size=10).map(b"".join),
        content_type=st.none() | st.sampled_from(CONTENT_TYPES) | st.binary(max_size=20),
        message_id=_shorts,
        user_id=_shorts,
        reply_to=_shorts,
        timestamp=st.none() | st.integers(0, 2**64 - 1),
        delivery_mode=st.none() | st.integers(0, 255),
    ),
    exchange=st.sampled_from(["", "retry.intake", "shop"]) | st.binary(max_size=5),
    routing_key=st.text(max_size=20) | st.binary(max_size=20),
)
"""Anything that can be delivered, leaning towards what nearly is a request."""


@dataclass(frozen=True, slots=True)
class Bad:
    """A message that a broker takes, and that is no request."""

    kind: str
    properties: Properties
    body: bytes = b"bad"
    exchange: str = ""
    key: str = "retry.scheduled"


def bad_request(random: Random, serial: int) -> Bad:
    """One of many ways to be wrong, surrounded by headers that say nothing."""
    kind = random.choice(sorted(_WAYS))
    body, content_type, entries = _WAYS[kind](random)
    noise = [named(f"noise-{place}", _value(random, 3)) for place in range(random.randrange(4))]
    random.shuffle(entries)
    properties = Properties(
        headers=b"".join([*noise, *entries]),
        content_type=content_type,
        message_id=f"bad-{serial}".encode(),
        expiration=None,
        timestamp=random.choice([None, 0, 2**63]),
        priority=random.choice([None, 0, 255]),
        correlation_id=random.choice([None, b"\x00\xff", b"c" * 255]),
    )
    return Bad(kind, properties, body)


Made = tuple[bytes, bytes | None, list[bytes]]
QUEUE = named("original_queue", "good")


def _value(random: Random, depth: int) -> bytes:
    """A value of any type that RabbitMQ knows."""
    kinds = "tbBsuIilfdDTVSx" + ("AF" if depth else "")
    kind = random.choice(kinds)
    if kind == "A":
        return array(*(_value(random, depth - 1) for _ in range(random.randrange(3))))
    if kind == "F":
        return table(*(named(f"n{place}", _value(random, depth - 1)) for place in range(random.randrange(3))))
    if kind in "Sx":
        return counted(kind.encode(), random.randbytes(random.randrange(20)))
    if kind in "fd":
        # Finite: RabbitMQ hangs up on a producer that sends it a NaN or an infinity.
        return kind.encode() + struct.pack(f">{kind}", random.uniform(-1e9, 1e9))
    sizes = {"t": 1, "b": 1, "B": 1, "s": 2, "u": 2, "I": 4, "i": 4, "l": 8, "D": 5, "T": 8, "V": 0}
    return kind.encode() + (random.randbytes(sizes[kind]) if kind != "t" else bytes([random.randrange(2)]))


def _no_origin(random: Random) -> Made:
    return random.randbytes(20), b"text/plain", [named("retry_count", 1)]


def _queue_of_a_wrong_type(random: Random) -> Made:
    wrong = random.choice([integer(5), array(text("good")), table(), b"t\x01", text(b"\xff\xfe" + random.randbytes(3))])
    return b"", None, [named("original_queue", wrong)]


def _forbidden_queue(random: Random) -> Made:
    name = random.choice(
        ["", "a\x00b", "retry.audit", "retry.delay.2s", "manual-review.pending", "amq.gen-x", "q" * 256]
    )
    return b"", None, [named("original_queue", name)]


def _unknown_queue(random: Random) -> Made:
    return b"", None, [named("original_queue", f"forbidden.{random.randrange(10**6)}")]


def _absurd_number(random: Random) -> Made:
    name = random.choice(["retry_count", "max_retries", "retry_after_ms", "next_retry_at_ms"])
    number = random.choice([-1, -(2**63), 2**63 - 1, -random.randrange(1, 2**40), 2**53 + random.randrange(1, 2**50)])
    return b"", None, [QUEUE, named(name, number)]


def _number_of_a_wrong_type(random: Random) -> Made:
    name = random.choice(["retry_count", "max_retries", "retry_after_ms", "next_retry_at_ms"])
    wrong = random.choice(
        [text("many"), b"t\x01", array(integer(1)), table(), b"d" + struct.pack(">d", 0.5), text(b"\xff")]
    )
    return b"", None, [QUEUE, named(name, wrong)]


def _text_of_a_wrong_type(random: Random) -> Made:
    name = random.choice(["error_type", "error_reason", "error_class"])
    return b"", None, [QUEUE, named(name, random.choice([integer(1), table(), text(b"\x80"), array()]))]


def _unknown_class(random: Random) -> Made:
    return b"", None, [QUEUE, named("error_class", random.choice(["fatal", "", "Retry", "final!"]))]


def _reserved_key(random: Random) -> Made:
    return b"", None, [QUEUE, named("original_routing_key", f"~to:{random.randrange(99)}")]


def _impossible_key(random: Random) -> Made:
    return b"", None, [QUEUE, named("original_routing_key", random.choice(["k" * 256, "a\x00"]))]


def _broken_protobuf(random: Random) -> Made:
    return b"\x1a\xff" + random.randbytes(random.randrange(30)), b"application/x-protobuf", []


def _nonsense_in_protobuf(random: Random) -> Made:
    fields: dict[str, Any] = random.choice(
        [
            {"retry_count": -random.randrange(1, 2**31)},
            {"max_retries": random.randrange(1_001, 2**31)},
            {"next_retry_at_ms": -random.randrange(1, 2**60)},
            {"message_id": "m" * 256},
            {"original_queue": "retry.scheduled"},
        ]
    )
    return RetryMessage(**({"original_queue": "good"} | fields)).SerializeToString(), b"application/x-protobuf", []


def _broken_json(random: Random) -> Made:
    whole = json.dumps({"original_queue": "good", "original_payload": "aGVsbG8="}).encode()
    return whole[: random.randrange(len(whole))], b"application/vnd.tarry.retry+json", []


def _nonsense_in_json(random: Random) -> Made:
    fields: dict[str, Any] = random.choice(
        [{"retry_count": "x"}, {"original_payload": "***"}, {"original_queue": ["good"]}, {"max_retries": 1e99}]
    )
    return json.dumps({"original_queue": "good"} | fields).encode(), b"application/vnd.tarry.retry+json", []


def _forged_headers_of_ours(random: Random) -> Made:
    forged = random.choice(
        [named("tarry-id", "x"), named("tarry-round", -1), named("tarry-count", "x"), named("tarry-since-ms", 2**62)]
    )
    whole = {"tarry-id": named("tarry-id", "24e9476b-f4f5-5044-8227-4c112216f4bc"), "q": named("tarry-queue", "good")}
    if forged.startswith(b"\x08tarry-id"):
        whole.pop("tarry-id")
    return b"", None, [QUEUE, *whole.values(), forged]


def _copied_death_without_a_failure(random: Random) -> Made:
    return b"", None, [named("x-death", array(death("good", random.choice(["expired", "maxlen"]))))]


_WAYS = {
    way.__name__.removeprefix("_").replace("_", " "): way
    for way in (
        _no_origin,
        _queue_of_a_wrong_type,
        _forbidden_queue,
        _unknown_queue,
        _absurd_number,
        _number_of_a_wrong_type,
        _text_of_a_wrong_type,
        _unknown_class,
        _reserved_key,
        _impossible_key,
        _broken_protobuf,
        _nonsense_in_protobuf,
        _broken_json,
        _nonsense_in_json,
        _forged_headers_of_ours,
        _copied_death_without_a_failure,
    )
}
KINDS = frozenset(_WAYS)
