"""When two messages are one: what the identity is made of, and what it leaves out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tarry.amqp.delivery import Delivery
from tarry.contract.identity import id_identity, is_id_identity, same_body
from tarry.contract.message import Request
from tarry.contract.request import parse
from tarry.core.decide import Schedule
from tests.unit.contract.test_returned import FIRST, SCHEDULE, sent_back
from tests.unit.contract.wire import ACCEPT, array, headers, named, new_id, published, rejected, text


def identity(delivery: Delivery) -> str:
    request = parse(delivery, ACCEPT, new_id)
    assert isinstance(request, Request), request
    assert request.identity is not None
    return request.identity


ID: dict[str, object] = {"message_id": b"m"}
PLAIN = identity(rejected(message_id=b"m"))


@pytest.mark.parametrize(
    "other",
    [
        rejected("shipping", message_id=b"m"),
        rejected(message_id=b"n"),
        rejected(),
        rejected(message_id=b"m", body=b"other"),
        rejected("orders", named("tenant", "a"), message_id=b"m"),
        rejected(message_id=b"m", content_type=b"text/plain"),
        rejected(message_id=b"m", content_encoding=b"gzip"),
        rejected(message_id=b"m", correlation_id=b"c"),
        rejected(message_id=b"m", reply_to=b"r"),
        rejected(message_id=b"m", timestamp=2**64 - 1),
        rejected(message_id=b"m", type=b"t"),
        rejected(message_id=b"m", app_id=b"a"),
        rejected("orders", named("priority", "high"), message_id=b"m"),
        published({"original_queue": "orders", "owner": "acme"}, message_id=b"m"),
        published({"original_queue": "orders", "owner": "other"}, message_id=b"m"),
    ],
    ids=[
        *("queue", "id", "no-id", "body", "header", "content-type", "encoding", "correlation", "reply-to"),
        *("timestamp", "type", "app", "own-priority", "owner", "other-owner"),
    ],
)
def test_identity_tells_apart(other: Delivery) -> None:
    assert identity(other) != PLAIN


@pytest.mark.parametrize(
    "same",
    [
        rejected("orders", headers({"tarry-any": 1, "x-request": "r"}), message_id=b"m"),
        rejected("orders", named("CC", array(text("a"))), named("BCC", array(text("b"))), message_id=b"m"),
        rejected(message_id=b"m", expiration=b"1", delivery_mode=1, priority=9, user_id=b"guest", cluster_id=b"c"),
        rejected(message_id=b"m", reply_to=b"amq.rabbitmq.reply-to"),
        rejected(message_id=b"m", exchange="shop", key="order.new"),
        published(
            {"original_queue": "orders", "error_reason": "x", "priority": "high", "job_type": "a"}, message_id=b"m"
        ),
    ],
    ids=["ours", "copies", "properties", "direct-reply", "origin", "contract"],
)
def test_identity_leaves_out(same: Delivery) -> None:
    assert identity(same) == PLAIN


def test_identity_does_not_depend_on_the_order_of_headers() -> None:
    one, other = named("a", 1), named("b", "2")
    assert identity(rejected("orders", one, other, message_id=b"m")) == identity(
        rejected("orders", other, one, message_id=b"m")
    )


def test_identity_cannot_be_forged_by_moving_bytes_between_parts() -> None:
    assert identity(rejected("ab", message_id=b"c")) != identity(rejected("a", message_id=b"bc"))
    assert identity(rejected(message_id=b"m", body=b"x")) != identity(rejected(message_id=b"mx", body=b""))
    assert identity(rejected(message_id=b"m", type=b"a")) != identity(rejected(message_id=b"m", app_id=b"a"))


def test_identity_of_an_envelope_is_that_of_the_message_in_it() -> None:
    inside = b'{"message_id": "m", "original_queue": "orders", "original_payload": "cGF5bG9hZA=="}'
    assert identity(published({}, inside, content_type=b"application/json")) == PLAIN


@pytest.mark.parametrize(
    "first",
    [
        rejected("orders", named("tenant", "a"), named("x-mine", 1), message_id=b"m", content_type=b"text/plain"),
        published({"original_queue": "orders", "error_reason": "x", "a": 1}, message_id=b"m", user_id=b"guest"),
        published(
            {"a": 1},
            b'{"message_id": "m", "original_queue": "orders", "original_payload": "cGF5bG9hZA=="}',
            content_type=b"application/json",
            message_id=b"of the envelope",
        ),
        published({"original_queue": "orders", "owner": 7}, message_id=b"m"),
        published(
            {"owner": 7},
            b'{"message_id": "m", "original_queue": "orders", "original_payload": "cGF5bG9hZA==", "owner": "acme"}',
            content_type=b"application/json",
        ),
        published(
            {"owner": 7},
            b'{"message_id": "m", "original_queue": "orders", "original_payload": "cGF5bG9hZA=="}',
            content_type=b"application/json",
        ),
        published({"original_queue": "orders", "owner": b"t\x01"}, message_id=b"m"),
        published(
            {"owner": b"t\x01"},
            b'{"message_id": "m", "original_queue": "orders", "original_payload": "cGF5bG9hZA=="}',
            content_type=b"application/json",
        ),
    ],
    ids=[
        *("reject", "headers", "envelope", "owner", "envelope-owner", "envelope-owner-header"),
        *("owner-ignored", "envelope-owner-ignored"),
    ],
)
@pytest.mark.parametrize("schedule", [SCHEDULE, FIRST], ids=["own-priority", "return-priority"])
def test_identity_of_what_returns_is_that_of_what_came(first: Delivery, schedule: Schedule) -> None:
    returned = sent_back(first, schedule=schedule)
    again = rejected("orders", returned.headers or b"", body=b"payload")
    properties = replace(returned, headers=again.properties.headers)
    assert identity(again._replace(properties=properties)) == identity(first)


def test_identity_keeps_queue_id_and_body_in_its_first_half() -> None:
    """Enough to go on counting for a consumer that loses headers, not enough to drop anything."""
    stripped = identity(rejected("orders", named("tenant", "a"), message_id=b"m"))
    assert (same_body(stripped), stripped != PLAIN) == (same_body(PLAIN), True)
    assert same_body(identity(rejected(message_id=b"m", body=b"other"))) != same_body(PLAIN)


def test_identity_by_message_id_is_known_as_such() -> None:
    assert is_id_identity(id_identity("orders", "m"))
    assert not is_id_identity(PLAIN)
    assert id_identity("orders", "m") != id_identity("orders", "n")
