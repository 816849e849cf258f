from __future__ import annotations

import base64
import json

import pytest
from structlog.testing import capture_logs

from tarry.amqp.delivery import Delivery
from tarry.amqp.properties import Properties
from tarry.contract.message import Origin, Probe, Request
from tarry.contract.request import parse
from tarry.contract.retry_pb2 import RetryMessage
from tarry.core.decide import Failure
from tarry.core.policy import ErrorClass
from tests.unit.contract.wire import (
    ACCEPT,
    NEW_ID,
    array,
    death,
    headers,
    integer,
    named,
    new_id,
    published,
    rejected,
    table,
)

SPOKEN: dict[str, bytes | str | int] = {
    "original_queue": "orders",
    "retry_count": 2,
    "max_retries": 5,
    "error_reason": "connection refused",
    "error_type": "ConnectionError",
    "error_class": "rate_limited",
    "retry_after_ms": 30_000,
    "next_retry_at_ms": 1_700_000_060_000,
    "priority": "high",
    "job_type": "invoice",
    "owner": "acme",
}


def understood(delivery: Delivery) -> Request:
    request = parse(delivery, ACCEPT, new_id)
    assert isinstance(request, Request), request
    return request


def test_a_bare_reject_says_where_it_failed_and_nothing_else() -> None:
    request = understood(rejected("orders", exchange="shop", key="order.created", message_id=b"m-1"))
    assert request.form == "reject"
    assert request.origin == Origin("orders", "shop", "order.created")
    assert request.failure == Failure("orders", error_type="rejected")
    assert request.death == "orders:1:1700000000"
    assert (request.message_id, request.body, request.speaks_contract) == ("m-1", b"payload", False)
    assert (request.deduplicable, request.knows_round) == (True, False)


def test_a_reject_after_too_many_deliveries_is_a_failure_too() -> None:
    assert understood(rejected(reason="delivery_limit")).failure.error_type == "delivery_limit"


def test_an_applications_own_headers_are_not_the_contract_on_a_bare_reject() -> None:
    """Not even wrong ones: they are none of our business."""
    own = headers(dict.fromkeys(SPOKEN, b"F\x00\x00\x00\x00"))
    assert understood(rejected("orders", own)).failure == Failure("orders", error_type="rejected")


def test_the_newest_death_outside_tarrys_own_queues_is_the_origin() -> None:
    deaths = array(
        death("retry.ladder.0.125ms", "expired"),
        death("orders", keys=["order.created", "copy"]),
        death("billing"),
    )
    delivery = Delivery(b"", Properties(headers=named("x-death", deaths)), "retry.intake", "order.created")
    assert understood(delivery).origin == Origin("orders", "", "order.created")


def test_a_dead_letter_by_way_of_the_default_exchange_is_a_bare_reject() -> None:
    assert understood(rejected(via="", content_type=b"application/x-protobuf")).form == "reject"


def test_headers_say_it_all() -> None:
    request = understood(published(SPOKEN, message_id=b"m-1"))
    assert request.form == "headers"
    assert request.origin == Origin("orders", "", "orders")
    assert request.failure == Failure(
        queue="orders",
        retry_count=2,
        max_retries=5,
        error_type="ConnectionError",
        error_reason="connection refused",
        error_class=ErrorClass.RATE_LIMITED,
        retry_after_ms=30_000,
        next_retry_at_ms=1_700_000_060_000,
        priority="high",
        job_type="invoice",
        owner="acme",
    )
    assert request.speaks_contract


@pytest.mark.parametrize(("written", "owner"), [(7, "7"), ("", None), (b"V", None), ("Ünion " * 42, "Ünion " * 42)])
def test_headers_name_an_owner_in_text_or_as_a_number(written: bytes | str | int, owner: str | None) -> None:
    assert understood(published(SPOKEN | {"owner": written})).failure.owner == owner


DOUBLE = b"d\x3f\xf8\x00\x00\x00\x00\x00\x00"


@pytest.mark.parametrize(
    "written",
    [table(named("id", 1)), array(integer(1)), b"t\x01", DOUBLE, b"S\x00\x00\x00\x01\x80", "o" * 256, "a\x00"],
)
def test_an_owner_that_cannot_be_used_is_ignored(written: bytes | str) -> None:
    """Applications had headers of this name before it had a meaning: their retries go on, and belong to nobody."""
    with capture_logs() as logs:
        assert understood(published(SPOKEN | {"owner": written})).failure.owner is None
    assert [(one["event"], one["queue"]) for one in logs] == [("owner ignored", "orders")]


def test_an_envelope_with_an_owner_that_cannot_be_used_has_that_of_the_header() -> None:
    body = RetryMessage(original_queue="orders", original_payload=b"p", owner="o" * 256).SerializeToString()
    request = understood(published({"owner": "other"}, body=body, content_type=b"application/x-protobuf"))
    assert request.failure.owner == "other"


@pytest.mark.parametrize("content_type", [b"application/x-protobuf", b"application/vnd.tarry.retry+json"])
def test_an_envelope_names_an_owner_that_comes_before_the_header(content_type: bytes) -> None:
    message = RetryMessage(original_queue="orders", original_payload=b"p", owner="acme")
    fields = {"original_queue": "orders", "original_payload": "cA==", "owner": "acme"}
    body = json.dumps(fields).encode() if b"json" in content_type else message.SerializeToString()
    assert understood(published({}, body=body, content_type=content_type)).failure.owner == "acme"
    assert understood(published({"owner": "other"}, body=body, content_type=content_type)).failure.owner == "acme"
    silent = RetryMessage(original_queue="orders", original_payload=b"p").SerializeToString()
    assert understood(
        published({"owner": "other"}, body=silent, content_type=b"application/x-protobuf")
    ).failure.owner == ("other")


def test_headers_need_no_more_than_the_queue() -> None:
    request = understood(published({"original_queue": "orders"}))
    assert request.failure == Failure("orders")
    assert (request.retry_id, request.deduplicable) == (NEW_ID, False)


def test_headers_may_name_the_exchange_and_key_that_the_message_had() -> None:
    spoken: dict[str, bytes | str | int] = {"original_exchange": "shop", "original_routing_key": "order.created"}
    assert understood(published(SPOKEN | spoken)).origin == Origin("orders", "shop", "order.created")


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(b"b\x07", id="8 bit"),
        pytest.param(b"B\x07", id="8 bit unsigned"),
        pytest.param(b"s\x00\x07", id="16 bit"),
        pytest.param(b"u\x00\x07", id="16 bit unsigned"),
        pytest.param(b"I\x00\x00\x00\x07", id="32 bit"),
        pytest.param(b"i\x00\x00\x00\x07", id="32 bit unsigned"),
        pytest.param(integer(7), id="64 bit"),
        pytest.param(b"d\x40\x1c\x00\x00\x00\x00\x00\x00", id="a whole double"),
        pytest.param(b"f\x40\xe0\x00\x00", id="a whole float"),
        pytest.param(b"S\x00\x00\x00\x017", id="digits"),
    ],
)
def test_a_number_may_be_written_as_any_client_writes_it(written: bytes) -> None:
    assert understood(published({"original_queue": "orders", "retry_count": written})).failure.retry_count == 7


def test_a_header_without_a_value_is_not_there() -> None:
    silent = dict.fromkeys(SPOKEN, b"V") | {"original_queue": b"S\x00\x00\x00\x06orders"}
    assert understood(published(dict(silent))).failure == Failure("orders")


def test_a_priority_may_be_a_number() -> None:
    assert understood(published({"original_queue": "orders", "priority": 9})).failure.priority == "9"


def test_a_zero_moment_is_no_moment() -> None:
    assert understood(published({"original_queue": "q", "next_retry_at_ms": 0})).failure.next_retry_at_ms is None


def test_a_copied_x_death_does_not_turn_a_published_request_into_a_reject() -> None:
    copied: dict[str, bytes | str | int] = {"x-death": array(death("billing"))}
    assert understood(published(SPOKEN | copied)).origin.queue == "orders"


ENVELOPE = RetryMessage(
    message_id="m-1",
    original_payload=b"\x00\xffpayload",
    original_queue="invoices",
    error_reason="timeout",
    retry_count=1,
    max_retries=4,
    next_retry_at_ms=1_700_000_060_000,
)


@pytest.mark.parametrize(
    "content_type",
    [
        b"application/x-protobuf",
        b"application/protobuf",
        b"application/vnd.google.protobuf",
        b"application/vnd.tarry.retry",
        b'Application/X-Protobuf; messageType="tarry.contract.RetryMessage"',
    ],
)
def test_a_protobuf_envelope_contains_payload_and_failure(content_type: bytes) -> None:
    request = understood(published({}, ENVELOPE.SerializeToString(), content_type=content_type))
    assert (request.form, request.body, request.message_id) == ("envelope", b"\x00\xffpayload", "m-1")
    assert request.origin == Origin("invoices", "", "invoices")
    assert request.failure == Failure(
        queue="invoices", retry_count=1, max_retries=4, error_reason="timeout", next_retry_at_ms=1_700_000_060_000
    )


def test_the_field_numbers_of_the_envelope_are_fixed() -> None:
    raw = b"\x0a\x03m-1\x12\x02hi\x1a\x08invoices\x22\x07timeout\x28\x01\x30\x04\x38\x80\xd0\x95\xff\xbc\x31"
    written = RetryMessage.FromString(raw)
    assert (written.message_id, written.original_payload, written.original_queue) == ("m-1", b"hi", "invoices")
    assert (written.error_reason, written.retry_count, written.max_retries) == ("timeout", 1, 4)
    assert written.next_retry_at_ms == 1_700_000_000_000


@pytest.mark.parametrize("content_type", [b"application/vnd.tarry.retry+json", b"application/json; charset=utf-8"])
def test_a_json_envelope_contains_the_same_with_a_base64_payload(content_type: bytes) -> None:
    body = {
        "message_id": "m-1",
        "original_payload": base64.b64encode(b"\x00\xffpayload").decode(),
        "original_queue": "invoices",
        "error_reason": "timeout",
        "retry_count": 1,
        "max_retries": 4,
        "next_retry_at_ms": "1700000060000",
        "something_newer": [1, {"a": None}],
    }
    request = understood(published({}, json.dumps(body).encode(), content_type=content_type))
    binary = understood(published({}, ENVELOPE.SerializeToString(), content_type=b"application/protobuf"))
    assert (request.failure, request.body, request.retry_id) == (binary.failure, binary.body, binary.retry_id)


def test_an_envelope_that_leaves_things_out_leaves_them_to_the_policy() -> None:
    body = RetryMessage(original_queue="invoices").SerializeToString()
    request = understood(published({}, body, content_type=b"application/protobuf"))
    assert (request.failure, request.body) == (Failure("invoices"), b"")
    assert request.retry_id == NEW_ID


def test_headers_beside_an_envelope_say_what_it_cannot() -> None:
    spoken: dict[str, bytes | str | int] = {"error_class": "final", "priority": "low", "max_retries": 9}
    request = understood(published(spoken, ENVELOPE.SerializeToString(), content_type=b"application/protobuf"))
    assert (request.failure.error_class, request.failure.priority) == (ErrorClass.FINAL, "low")
    assert request.failure.max_retries == 4


def test_an_envelope_of_our_own_type_is_one_even_beside_a_copied_x_death() -> None:
    copied: dict[str, bytes | str | int] = {"x-death": array(death("billing"))}
    body = ENVELOPE.SerializeToString()
    assert understood(published(copied, body, content_type=b"application/vnd.tarry.retry")).form == "envelope"


def test_only_what_died_in_the_probes_own_queue_is_a_probe() -> None:
    probe = named("tarry-probe", "retry.probe.0a1b2c")
    assert isinstance(parse(rejected("retry.probe.0a1b2c", probe), ACCEPT, new_id), Probe)
    assert understood(rejected("orders", probe)).origin.queue == "orders"
