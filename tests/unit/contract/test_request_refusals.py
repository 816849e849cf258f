from __future__ import annotations

import base64
import json

import pytest

from tarry.amqp.delivery import Delivery
from tarry.amqp.properties import Properties
from tarry.contract.message import LARGEST_BODY, Acceptance, Refused
from tarry.contract.request import parse
from tarry.contract.retry_pb2 import RetryMessage
from tests.unit.contract.wire import ACCEPT, NAMES, NEW_ID, array, death, named, new_id, published, rejected, table

PROTOBUF = {"content_type": b"application/x-protobuf"}
JSON = {"content_type": b"application/vnd.tarry.retry+json"}


def reason_of(delivery: Delivery, accept: Acceptance = ACCEPT) -> str:
    refused = parse(delivery, accept, new_id)
    assert isinstance(refused, Refused), refused
    assert refused.delivery is delivery
    assert refused.retry_id == NEW_ID
    return refused.reason


def with_header(name: str, value: bytes | str | int) -> Delivery:
    return published({"original_queue": "orders", name: value})


def enveloped(**fields: object) -> Delivery:
    message = RetryMessage(**({"original_queue": "orders"} | fields))  # type: ignore[arg-type]
    return published({}, message.SerializeToString(), **PROTOBUF)


NO_ORIGIN = "no origin: it was not dead-lettered, has no `original_queue` header and is not a RetryMessage envelope"


@pytest.mark.parametrize(
    ("delivery", "reason"),
    [
        (Delivery(b"hello", Properties(), "", "retry.scheduled"), NO_ORIGIN),
        (published({"retry_count": 1}), NO_ORIGIN),
        (published({"original_queue": ""}), NO_ORIGIN),
        (Delivery(b"", Properties(headers=named("x-death", table())), "retry.intake", "k"), NO_ORIGIN),
        (Delivery(b"", Properties(headers=named("x-death", array())), "retry.intake", "k"), NO_ORIGIN),
        (rejected("retry.delay.8s", reason="expired"), NO_ORIGIN),
        (rejected(reason="expired"), "dead-lettered as 'expired' from 'orders', which does not count as a failure"),
        (rejected(reason="maxlen"), "dead-lettered as 'maxlen' from 'orders', which does not count as a failure"),
    ],
)
def test_a_message_without_an_origin(delivery: Delivery, reason: str) -> None:
    assert reason_of(delivery) == reason


@pytest.mark.parametrize(
    ("queue", "reason"),
    [
        ("a\x00b", "'a\\x00b' cannot be the name of an origin queue"),
        ("é" * 128, f"'{'é' * 40}' cannot be the name of an origin queue"),
        ("retry.scheduled", "the origin 'retry.scheduled' is a queue of tarry's or the broker's own"),
        ("retry.anything", "the origin 'retry.anything' is a queue of tarry's or the broker's own"),
        ("manual-review.pending", "the origin 'manual-review.pending' is a queue of tarry's or the broker's own"),
        ("amq.gen-xyz", "the origin 'amq.gen-xyz' is a queue of tarry's or the broker's own"),
    ],
)
def test_a_queue_that_cannot_be_an_origin(queue: str, reason: str) -> None:
    assert reason_of(published({"original_queue": queue})) == reason


def test_a_queue_outside_the_destinations() -> None:
    accept = Acceptance(NAMES, destinations=("orders.*", "billing"))
    assert reason_of(published({"original_queue": "payroll"}), accept) == (
        "the origin 'payroll' is outside the topology's `destinations`"
    )


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("original_queue", 5, "the header `original_queue` must be UTF-8 text"),
        ("original_queue", b"S\x00\x00\x00\x02\xff\xfe", "the header `original_queue` must be UTF-8 text"),
        ("retry_count", -1, "`retry_count` is -1: it must be from 0 to 1000"),
        ("retry_count", 1001, "`retry_count` is 1001: it must be from 0 to 1000"),
        ("retry_count", 2**63 - 1, "`retry_count` is 9223372036854775807: it must be from 0 to 1000"),
        ("retry_count", -(2**63), "`retry_count` is -9223372036854775808: it must be from 0 to 1000"),
        ("retry_count", b"L" + b"\xff" * 8, "`retry_count` is 18446744073709551615: it must be from 0 to 1000"),
        ("retry_count", "many", "the header `retry_count` must be a whole number"),
        ("retry_count", "9" * 400, "the header `retry_count` must be a whole number"),
        ("retry_count", "٣", "the header `retry_count` must be a whole number"),
        ("retry_count", b"t\x01", "the header `retry_count` must be a whole number"),
        ("retry_count", b"d\x3f\xf8\x00\x00\x00\x00\x00\x00", "the header `retry_count` must be a whole number"),
        ("retry_count", b"d\x7f\xf0\x00\x00\x00\x00\x00\x00", "the header `retry_count` must be a whole number"),
        ("retry_count", b"d\x7f\xf8\x00\x00\x00\x00\x00\x00", "the header `retry_count` must be a whole number"),
        ("max_retries", -5, "`max_retries` is -5: it must be from 0 to 1000"),
        ("max_retries", 10**9, "`max_retries` is 1000000000: it must be from 0 to 1000"),
        ("retry_after_ms", -1, "`retry_after_ms` is -1: it must be from 0 to 9007199254740992"),
        ("next_retry_at_ms", -1, "`next_retry_at_ms` is -1: it must be from 0 to 9007199254740992"),
        (
            "next_retry_at_ms",
            1_700_000_000,
            "`next_retry_at_ms` is 1700000000: it counts milliseconds since 1970, and this looks like seconds",
        ),
        ("next_retry_at_ms", b"T" + b"\x00" * 8, "the header `next_retry_at_ms` must be a whole number"),
        ("error_class", "fatal", "`error_class` is 'fatal': use one of final, retryable, rate_limited"),
        ("error_class", 1, "the header `error_class` must be UTF-8 text"),
        ("error_type", array(), "the header `error_type` must be UTF-8 text"),
        ("error_reason", b"x\x00\x00\x00\x01\x80", "the header `error_reason` must be UTF-8 text"),
        ("priority", table(), "the header `priority` must be UTF-8 text"),
        ("job_type", b"t\x01", "the header `job_type` must be UTF-8 text"),
        ("original_routing_key", "~to:payroll", "its routing key starts with '~', which is reserved for tarry"),
        ("original_routing_key", "k" * 256, "its routing key is longer than 255 bytes"),
        ("original_routing_key", "a\x00", "its routing key contains a NUL: 'a\\x00'"),
        ("original_exchange", "e" * 256, "its exchange is longer than 255 bytes"),
        ("original_exchange", "\x00", "its exchange contains a NUL: '\\x00'"),
    ],
)
def test_a_header_that_says_nonsense(name: str, value: bytes | str | int, reason: str) -> None:
    assert reason_of(with_header(name, value)) == reason


def test_a_routing_key_with_our_prefix() -> None:
    assert reason_of(rejected(key="~in:8s")) == "its routing key starts with '~', which is reserved for tarry"


def test_a_routing_key_that_is_not_text() -> None:
    delivery = Delivery(b"", rejected().properties, "retry.intake", b"\xff\xfe")
    assert reason_of(delivery) == "its routing key is not UTF-8 text"


def test_an_x_death_that_is_not_text() -> None:
    deaths = array(death("orders", keys=[b"\xff"]))
    delivery = Delivery(b"", Properties(headers=named("x-death", deaths)), "retry.intake", "k")
    assert reason_of(delivery) == "its x-death names a queue, exchange or key that is not UTF-8 text"


@pytest.mark.parametrize(
    ("body", "properties", "reason"),
    [
        (b"\xff\xff", PROTOBUF, "it is not protobuf"),
        (b"\x1a\x02\xff\xfe", PROTOBUF, "a text in it is not UTF-8"),
        (b"", PROTOBUF, "the RetryMessage envelope names no original_queue"),
        (b"{", JSON, "it is not valid JSON (line 1, column 2)"),
        (b"\xff{}", JSON, "it is not UTF-8 text, at byte 0"),
        (b"[]", JSON, "it must be a JSON object"),
        (b"5", JSON, "it must be a JSON object"),
        (b"null", JSON, "it must be a JSON object"),
        (b'{"original_queue": "orders", "retry_count": 1e400}', JSON, "`retry_count` must be a whole number"),
        (b'{"original_queue": "orders", "original_payload": "*"}', JSON, "`original_payload` is not base64"),
        (b'{"original_queue": "orders", "originalPayload": "aGk=x"}', JSON, "`originalPayload` is not base64"),
        (b'{"original_queue": "orders", "original_payload": "aGkxx"}', JSON, "`original_payload` is not base64"),
        (b'{"original_queue": "\\ud800"}', JSON, "`original_queue` must be text"),
        (b'{"original_queue": {"a": 1}}', JSON, "`original_queue` must be text"),
        (b"[" * 100_000, JSON, "the RetryMessage envelope cannot be read"),
        (b'{"x": ' * 5_000 + b"1" + b"}" * 5_000, JSON, "the RetryMessage envelope cannot be read"),
        (b'{"order": 1}', {"content_type": b"application/json"}, "names no original_queue"),
    ],
)
def test_an_envelope_that_cannot_be_opened(body: bytes, properties: dict[str, bytes], reason: str) -> None:
    assert reason in reason_of(published({}, body, **properties))


@pytest.mark.parametrize(
    ("delivery", "reason"),
    [
        (enveloped(retry_count=-1), "`retry_count` is -1: it must be from 0 to 1000"),
        (enveloped(max_retries=2**31 - 1), "`max_retries` is 2147483647: it must be from 0 to 1000"),
        (enveloped(next_retry_at_ms=-5), "`next_retry_at_ms` is -5: it must be from 0 to 9007199254740992"),
        (enveloped(original_queue="retry.audit"), "the origin 'retry.audit' is a queue of tarry's or the broker's own"),
        (enveloped(message_id="m\x00"), "`message_id` must have at most 255 bytes and no NUL: 'm\\x00'"),
        (enveloped(message_id="é" * 128), f"`message_id` must have at most 255 bytes and no NUL: '{'é' * 40}'"),
    ],
)
def test_an_envelope_that_says_nonsense(delivery: Delivery, reason: str) -> None:
    assert reason_of(delivery) == reason


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\x05ab", "a field is cut off"),
        (b"\x01a", "a field is cut off"),
        (b"\x01aS\x00\x00", "a field is cut off"),
        (b"\x01aS\x00\x00\x00\x09abc", "a field is longer than the table"),
        (b"\x01al\x00", "a field is longer than the table"),
        (b"\x01aF\xff\xff\xff\xff", "a field is longer than the table"),
        (b"\x01a?", "unknown field type b'?'"),
        (named("x-death", array(b"?")), "unknown field type b'?'"),
        (named("x-death", array(b"S\x00")), "a field is cut off"),
        (named("x-death", array(b"l\x00")), "a field is longer than the array"),
        (named("x-death", array(table(b"\x01aS"))), "a field is cut off"),
    ],
)
def test_a_broken_header_table(raw: bytes, reason: str) -> None:
    delivery = Delivery(b"", Properties(headers=raw), "retry.intake", "k")
    assert reason_of(delivery) == f"the header table is broken: {reason}"


def test_a_body_of_sixteen_mebibytes() -> None:
    reason = "its body has 16.0 MiB; the limit is 8 MiB"
    assert reason_of(rejected(body=bytes(16 * 2**20))) == reason
    assert not isinstance(parse(rejected(body=bytes(LARGEST_BODY)), ACCEPT, new_id), Refused)


def test_a_payload_grows_no_larger_by_its_envelope() -> None:
    payload = base64.b64encode(bytes(7 * 2**20)).decode()
    body = json.dumps({"original_queue": "orders", "original_payload": payload}).encode()
    assert "its body has 9.3 MiB" in reason_of(published({}, body, **JSON))
