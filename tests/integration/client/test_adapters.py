"""What takes more than a case of the table (conformance.py); each test runs against each adapter and program."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pika
import pytest
from pika.exceptions import NackError

from tarry.amqp.field_tables import table
from tarry.amqp.properties import Properties
from tarry.client import Attempt, Final, Options
from tests.integration.client.adapters import AioPika, Consumer
from tests.integration.client.conformance import RETURNED, Like
from tests.integration.client.failures import error_of
from tests.integration.client.installation import QUEUE, ClientInstallation
from tests.integration.client.programs import Program
from tests.support.waiting import eventually, wait_for

ZOO: dict[str, Any] = {
    "text": "grüße",
    "yes": True,
    "number": 7,
    "large": 2**60,
    "negative": -3,
    "void": None,
    "when": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
    "price": Decimal("12.34"),
    "raw": b"\x00\xff",
    "list": ["a", 1, None, {"deep": [b"x"]}],
    "table": {"a": {"b": 2}},
}
AT_ONCE = Options(pauses=())


class Handler:
    """Fails with what it is given, one after the other, then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.seen: list[tuple[Attempt, bytes]] = []

    def __call__(self, attempt: Attempt, body: bytes) -> None:
        self.seen.append((attempt, body))
        if self.errors:
            raise self.errors.pop(0)


def fails(error: Exception) -> Any:
    def handle(_attempt: Attempt, _body: bytes) -> None:
        raise error

    return handle


def test_what_fails_becomes_a_request_and_is_acknowledged(
    installation: ClientInstallation, adapter: type[Consumer]
) -> None:
    installation.channel.exchange_declare("shop", "topic", durable=True)
    installation.channel.queue_bind(QUEUE, "shop", "order.#")
    about: dict[str, Any] = {
        "content_type": "application/json",
        "correlation_id": "c-1",
        "reply_to": "answers",
        "timestamp": 1_700_000_000,
        "type": "order",
        "app_id": "shop",
        "expiration": "600000",
        "headers": {**ZOO, "x-delivery-count": 9, "error_reason": "stale"},
    }
    installation.publish(b"\x00body", "m-1", "shop", **about)
    with adapter(installation.amqp_url, QUEUE, fails(error_of({"kind": "card_declined", "reason": "no card"}))):
        request = installation.take()
    assert request.body == b"\x00body"
    said = {
        "original_queue": QUEUE,
        "original_exchange": "shop",
        "original_routing_key": "order.new",
        "retry_count": 0,
        "error_type": Like("*CardDeclined"),
        "error_reason": "no card",
    }
    # Old brokers count the deliveries of every message, this one's included.
    found = {name: value for name, value in request.headers.items() if name != "x-delivery-count"}
    assert found == ZOO | said
    kept = {name: getattr(request.properties, name) for name in about if name not in ("headers", "expiration")}
    assert kept == {name: about[name] for name in kept}
    assert (request.properties.message_id, request.properties.delivery_mode) == ("m-1", 2)
    assert request.properties.expiration is None
    assert (installation.depth(QUEUE), installation.depth("retry.scheduled")) == (0, 0)


def test_plain_failures_can_be_rejected_byte_for_byte(
    installation: ClientInstallation, adapter: type[Consumer]
) -> None:
    attached = {"x-queue-type": "quorum", "x-dead-letter-exchange": "retry.intake"}
    installation.channel.queue_declare("attached", durable=True, arguments=attached)
    for message in ("plain", "final"):
        about: Any = Properties(message_id=message.encode(), delivery_mode=2, headers=table({"ratio": 0.1}))
        installation.channel.basic_publish("", "attached", message.encode(), about)

    def handle(_attempt: Attempt, body: bytes) -> None:
        raise Final("never") if body == b"final" else ValueError("so")

    with adapter(installation.amqp_url, "attached", handle, Options(plain="reject")):
        requests = installation.take_exactly(2)
    assert "x-death" in requests[b"plain"]
    assert "error_reason" not in requests[b"plain"]
    assert requests[b"plain"]["ratio"] == 0.1
    assert requests[b"final"]["error_class"] == "final"
    # A request is made of what the library decoded, and pika makes whole numbers of floats.
    assert requests[b"final"]["ratio"] == (0.1 if issubclass(adapter, (AioPika, Program)) else 0)


def properties(message_id: str, **about: Any) -> Any:
    return pika.BasicProperties(delivery_mode=2, message_id=message_id, **about)


@pytest.mark.parametrize("trouble", ["unbound", "deleted", "full"])
def test_a_request_that_is_not_taken_puts_the_message_back(
    installation: ClientInstallation, adapter: type[Consumer], trouble: str
) -> None:
    """Two of the same id, at the same time: neither may be taken for the other."""
    mend = breaks(installation, trouble)
    deliveries: list[bytes] = []

    def handle(_attempt: Attempt, body: bytes) -> None:
        deliveries.append(body)
        raise ValueError("as always")

    installation.channel.queue_declare("patient", durable=True, arguments={"x-queue-type": "classic"})
    for body in (b"1", b"2"):
        installation.channel.basic_publish("", "patient", body, properties("same"))
    with adapter(installation.amqp_url, "patient", handle, AT_ONCE):
        wait_for(lambda: min(deliveries.count(b"1"), deliveries.count(b"2")) >= 3, what="messages that come again")
        mend()
        requests: list[bytes] = []
        while len(requests) < 2:
            body = installation.take().body
            requests += [body] if body != b"in the way" else []
        eventually(lambda: check(installation.depth("patient") == 0))
    assert sorted(requests) == [b"1", b"2"]


def check(truth: bool) -> None:  # noqa: FBT001 - an assertion as a function
    assert truth


def breaks(installation: ClientInstallation, trouble: str) -> Any:
    """Makes the way in impassable; returns how to mend it."""
    channel = installation.channel
    if trouble == "unbound":
        channel.queue_unbind("retry.scheduled", "retry.intake", "")
        return lambda: channel.queue_bind("retry.scheduled", "retry.intake", "")
    if trouble == "deleted":
        channel.exchange_delete("retry.intake")

        def again() -> None:
            channel.exchange_declare("retry.intake", "fanout", durable=True)
            channel.queue_bind("retry.scheduled", "retry.intake", "")

        return again
    # The limit of a quorum queue is a soft one, so it is overstepped first.
    for _ in range(3):
        channel.basic_publish("", "retry.scheduled", b"in the way")
    full = {"pattern": "^retry.scheduled$", "definition": {"max-length": 1}, "apply-to": "queues"}
    installation.api("policies/{vhost}/full", method="PUT", body=full)
    wait_for(lambda: is_full(installation), what="the queue to refuse")
    return lambda: installation.api("policies/{vhost}/full", method="DELETE")


def is_full(installation: ClientInstallation) -> bool:
    try:
        installation.channel.basic_publish("", "retry.scheduled", b"in the way")
    except NackError:
        return True
    return False


def test_reports_that_cannot_be_sent_hurt_nobody(installation: ClientInstallation, adapter: type[Consumer]) -> None:
    installation.channel.exchange_delete("retry.reports")
    handler = Handler()
    for number in range(6):
        installation.publish(b"", f"m-{number}", headers=RETURNED)
    with adapter(installation.amqp_url, QUEUE, handler, Options(report_batch=2)):
        wait_for(lambda: len(handler.seen) == 6, what="six deliveries")
    assert installation.depth(QUEUE) == 0


def test_one_report_tells_of_many(installation: ClientInstallation, adapter: type[Consumer]) -> None:
    handler = Handler()
    for number in range(25):
        headers = RETURNED | {"tarry-id": f"00000000-0000-4000-8000-{number:012}"}
        installation.publish(b"", f"m-{number}", headers=headers)
    options = Options(report_batch=10, report_seconds=60, report_starts=False)
    with adapter(installation.amqp_url, QUEUE, handler, options):
        wait_for(lambda: len(handler.seen) == 25, what="all deliveries")
    reports = wait_for(lambda: installation.depth("retry.audit"), what="a report")
    assert len({one.retry_id for one in installation.reported(25)}) == 25
    assert reports <= 5
