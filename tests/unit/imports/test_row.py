from __future__ import annotations

from typing import Any

import pytest

from tarry.amqp.delivery import Delivery
from tarry.contract.identity import retry_id
from tarry.contract.message import Request
from tarry.contract.request import parse
from tarry.imports.row import CannotImportError, ImportRow, request_of
from tests.unit.contract.wire import ACCEPT, new_id

DUE = 1_800_000_000_000
FRAME = 131_072
SOURCE = "6f1b4b9c-0000-4000-8000-000000000001"


def row(**changes: Any) -> ImportRow:
    return ImportRow("17", DUE, "invoices", b"\x00body", 2, {})._replace(**changes)


def requested(one: ImportRow) -> Request:
    """As the router reads it."""
    message = request_of(one, SOURCE, "retry.scheduled", FRAME)
    assert (message.exchange, message.routing_key) == ("", "retry.scheduled")
    delivery = Delivery(message.body, message.properties, "", "retry.scheduled")
    found = parse(delivery, ACCEPT, new_id)
    assert isinstance(found, Request), found
    return found


def test_row_becomes_a_request_with_its_due_time_and_count() -> None:
    fields = {"message_id": "inv-17", "max_retries": 5, "error_reason": "locked", "owner": "acme", "job_type": None}
    request = requested(row(fields=fields))
    assert (request.body, request.message_id, request.origin.queue) == (b"\x00body", "inv-17", "invoices")
    failure = request.failure
    assert (failure.import_due_ms, failure.retry_count, failure.round, failure.max_retries) == (DUE, 2, 0, 5)
    assert (failure.error_reason, failure.owner, failure.job_type) == ("locked", "acme", None)


def test_row_has_the_same_retry_id_each_time_and_another_one_in_another_source() -> None:
    first, again = requested(row()), requested(row())
    assert first.retry_id == again.retry_id == retry_id(SOURCE, "17")
    assert first.knows_round
    assert request_of(row(), "other", "retry.scheduled", FRAME).token != f"{first.retry_id}:0"


def test_row_without_a_message_id_is_recognised_too() -> None:
    assert (requested(row()).message_id, requested(row()).deduplicable) == (None, True)


def test_row_keeps_its_headers_but_none_that_the_broker_or_tarry_would_take_for_its_own() -> None:
    headers = {"tenant": "acme", "n": 3, "x-death": [], "tarry-id": "forged", "CC": ["a"]}
    table = request_of(row(fields={"headers": headers}), SOURCE, "retry.scheduled", FRAME).properties.headers or b""
    assert b"tenant" in table
    assert not [name for name in (b"x-death", b"forged", b"CC") if name in table]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"queue": None}, "no queue"),
        ({"queue": "é" * 128}, "no queue of 1 to 255 bytes"),
        ({"due_ms": None}, "no due time"),
        ({"due_ms": 1_800_000_000}, "not in milliseconds"),
        ({"payload": None}, "no payload"),
        ({"fields": {"message_id": "x" * 256}}, "message_id has 256 bytes"),
        ({"fields": {"headers": "plain text"}}, "not a JSON object"),
        ({"fields": {"headers": {"large": "x" * FRAME}}}, "one frame"),
    ],
)
def test_row_that_cannot_be_a_request_says_why(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(CannotImportError, match=why):
        request_of(row(**changes), SOURCE, "retry.scheduled", FRAME)
