"""Which of the three forms a request is in, where it could be more than one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tarry.contract.message import Request
from tarry.contract.request import parse
from tarry.core.policy import ErrorClass
from tests.unit.contract.wire import ACCEPT, NEW_ID, array, death, named, new_id, published, rejected

OWN_JSON = b"application/vnd.tarry.retry+json"


def understood(delivery: Any) -> Request:
    item = parse(delivery, ACCEPT, new_id)
    assert isinstance(item, Request), item
    return item


def own_envelope(**fields: str) -> bytes:
    return json.dumps({"original_payload": "cGF5", **fields}).encode()


@pytest.mark.parametrize("empty", ["", b"V"])
def test_an_empty_original_queue_header_counts_as_absent(empty: str | bytes) -> None:
    body = own_envelope(original_queue="orders")
    assert understood(published({"original_queue": empty}, body, content_type=b"application/json")).form == "envelope"
    died = rejected("orders", named("original_queue", empty), via="")
    assert (understood(died).form, understood(died).origin.queue) == ("reject", "orders")


def test_own_content_type_is_an_envelope_whatever_the_headers() -> None:
    body = own_envelope(original_queue="orders")
    item = understood(published({"original_queue": "other"}, body, content_type=OWN_JSON))
    assert (item.form, item.origin.queue, item.body) == ("envelope", "orders", b"pay")
    died = published({"x-death": array(death("other"))}, body, content_type=OWN_JSON)
    assert understood(died).form == "envelope"


def test_own_content_type_may_leave_the_queue_to_the_header() -> None:
    item = understood(published({"original_queue": "orders"}, own_envelope(), content_type=OWN_JSON))
    assert (item.form, item.origin.queue, item.body) == ("envelope", "orders", b"pay")


def test_own_content_type_from_an_attached_queue_is_a_reject() -> None:
    item = understood(rejected("orders", body=own_envelope(original_queue="other"), content_type=OWN_JSON))
    assert (item.form, item.origin.queue) == ("reject", "orders")
    assert item.retry_id == NEW_ID


@pytest.mark.parametrize("text", ["rate_limited", "Rate-Limited", "RATE_LIMITED", "rate-limited"])
def test_error_class_is_read_in_any_case_and_with_a_hyphen(text: str) -> None:
    item = understood(published({"original_queue": "orders", "error_class": text}))
    assert item.failure.error_class is ErrorClass.RATE_LIMITED
