"""A request that cannot be understood keeps its message id and its origin, as far as they can be read."""

from __future__ import annotations

import json

import pytest

from tarry.amqp.delivery import Delivery
from tarry.amqp.properties import Properties
from tarry.contract.message import Acceptance, Origin, Refused
from tarry.contract.request import parse
from tarry.contract.retry_pb2 import RetryMessage
from tarry.contract.returned import for_review
from tests.unit.contract.wire import ACCEPT, NAMES, NEW_ID, array, death, headers, named, new_id, published, rejected

OWN_JSON = {"content_type": b"application/vnd.tarry.retry+json"}
ORDERS = Origin("orders", "", "orders")
NOWHERE = Origin("", "", "")


def refused(delivery: Delivery, accept: Acceptance = ACCEPT) -> Refused:
    item = parse(delivery, accept, new_id)
    assert isinstance(item, Refused), item
    return item


def enveloped(body: object, **values: str) -> Delivery:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return published(dict(values), raw, **OWN_JSON)


@pytest.mark.parametrize(
    ("delivery", "origin"),
    [
        (rejected("orders", reason="expired", exchange="shop", key="new"), Origin("orders", "shop", "new")),
        (rejected("orders", key="~in:8s"), ORDERS),
        (
            Delivery(b"", Properties(headers=named("x-death", array(death("orders", keys=[b"\xff"])))), "retry.intake"),
            ORDERS,
        ),
        (rejected("orders", named("tarry-id", "no id"), named("tarry-queue", "orders")), ORDERS),
        (published({"original_queue": "orders", "retry_count": -1}), ORDERS),
        (
            published({"original_queue": "orders", "error_class": "fatal", "original_routing_key": "new"}),
            Origin("orders", "", "new"),
        ),
        (published({"original_queue": "orders", "original_exchange": "\x00"}), ORDERS),
        (published({"original_queue": "orders", "original_exchange": "shop", "retry_count": "x"}),
         Origin("orders", "shop", "orders")),
        (published({"original_queue": "orders", "original_routing_key": 5}), ORDERS),
        (published({"original_queue": "retry.audit"}), Origin("retry.audit", "", "retry.audit")),
        (enveloped({"original_queue": "orders", "retry_count": -1}), ORDERS),
        (enveloped({"originalQueue": "orders", "original_payload": "*"}), ORDERS),
        (enveloped(b"{", original_queue="orders"), ORDERS),
        (published({"tarry-queue": "orders", "tarry-exchange": "shop", "tarry-key": "new"}),
         Origin("orders", "shop", "new")),
    ],
)  # fmt: skip
def test_refused_has_the_origin_that_could_be_read(delivery: Delivery, origin: Origin) -> None:
    assert refused(delivery).origin == origin


@pytest.mark.parametrize(
    "delivery",
    [
        Delivery(b"", Properties(), "", "retry.scheduled"),
        published({"original_queue": "a\x00b"}),
        published({"original_queue": "é" * 128}),
        published({"original_queue": 5}),
        enveloped(b"[]"),
        enveloped({"original_queue": {"a": 1}}),
        enveloped({"original_queue": "a\ud800"}),
        enveloped(b"[" * 100_000),
        Delivery(b"", Properties(headers=b"\x05ab"), "retry.intake", "k"),
    ],
)
def test_refused_has_no_origin_where_none_can_be_read(delivery: Delivery) -> None:
    assert refused(delivery).origin == NOWHERE


def test_refused_has_an_origin_outside_the_destinations() -> None:
    accept = Acceptance(NAMES, destinations=("billing",))
    assert refused(published({"original_queue": "orders"}), accept).origin == ORDERS


@pytest.mark.parametrize(
    ("delivery", "message_id"),
    [
        (published({}, message_id=b"m-1"), "m-1"),
        (published({}, message_id=b"m\x00\xff"), "m\\x00\\xff"),
        (published({}), None),
        (Delivery(b"", Properties(headers=b"\x05ab", message_id=b"m-1"), "", "k"), "m-1"),
        (rejected("orders", reason="expired", message_id=b"m-1"), "m-1"),
        (rejected(body=bytes(9 * 2**20), message_id=b"m-1"), "m-1"),
        (enveloped({"message_id": "m-1", "original_queue": "orders", "retry_count": -1}), "m-1"),
        (enveloped({"messageId": "m-1", "original_payload": "*"}), "m-1"),
        (enveloped({"message_id": "m" * 256, "original_queue": "orders"}), None),
    ],
)
def test_refused_has_the_message_id_that_could_be_read(delivery: Delivery, message_id: str | None) -> None:
    assert refused(delivery).message_id == message_id


def test_refused_reads_a_protobuf_envelope() -> None:
    body = RetryMessage(original_queue="orders", message_id="m-1", retry_count=-1).SerializeToString()
    item = refused(published({}, body, content_type=b"application/x-protobuf"))
    assert (item.message_id, item.origin) == ("m-1", ORDERS)


def test_refused_request_of_the_contract_says_so_in_review() -> None:
    said: dict[str, bytes | str | int] = {"original_queue": "orders", "retry_count": -1}
    properties = for_review(refused(published(said)), "why", 0, 131_072)
    assert properties.headers == headers(said) + headers(
        {
            "review_reason": "why",
            "tarry-id": NEW_ID,
            "tarry-round": 0,
            "tarry-queue": "orders",
            "tarry-exchange": "",
            "tarry-key": "orders",
            "tarry-form": "contract",
        }
    )


def test_refused_reject_names_its_queue_in_review() -> None:
    found = for_review(refused(rejected("orders", reason="expired")), "why", 0, 131_072).headers or b""
    assert named("tarry-queue", "orders") in found
    assert b"tarry-form" not in found
