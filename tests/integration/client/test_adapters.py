"""The conformance suite: each test runs against each adapter."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pika
import pytest
from pika.exceptions import NackError

from tarry.amqp.field_tables import table
from tarry.amqp.properties import Properties
from tarry.client import Attempt, Classes, Final, Options, RateLimited
from tests.integration.client.adapters import AioPika, Consumer
from tests.integration.client.installation import QUEUE, ClientInstallation
from tests.support.waiting import eventually, wait_for

ID = "0a0a0a0a-0b0b-5c0c-8d0d-0e0e0e0e0e0e"
RETURNED = {
    "tarry-id": ID,
    "tarry-round": 4,
    "tarry-count": 3,
    "tarry-max-retries": 3,
    "tarry-due-ms": 1_700_000_000_500,
    "tarry-since-ms": 1_700_000_000_000,
    "tarry-deadline-ms": 1_700_000_060_000,
    "tarry-queue": QUEUE,
    "tarry-exchange": "shop",
    "tarry-key": "order.new",
    "tarry-form": "contract",
    "retry_count": 3,
}
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


def test_what_succeeds_is_acknowledged_and_nothing_is_asked_for(
    installation: ClientInstallation, adapter: type[Consumer]
) -> None:
    handler = Handler()
    installation.publish(b"one", "m-1")
    with adapter(installation.amqp_url, QUEUE, handler):
        wait_for(lambda: handler.seen, what="a delivery")
    assert handler.seen == [(Attempt(QUEUE, "m-1"), b"one")]
    assert (installation.depth(QUEUE), installation.depth("retry.scheduled"), installation.depth("retry.audit")) == (
        0,
        0,
        0,
    )


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
    with adapter(installation.amqp_url, QUEUE, fails(ValueError("no card"))):
        request = installation.take()
    assert request.body == b"\x00body"
    said = {
        "original_queue": QUEUE,
        "original_exchange": "shop",
        "original_routing_key": "order.new",
        "retry_count": 0,
        "error_type": "ValueError",
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


def test_a_message_that_came_back_says_which_attempt_it_is(
    installation: ClientInstallation, adapter: type[Consumer]
) -> None:
    handler = Handler()
    installation.publish(b"again", "m-1", headers=RETURNED)
    with adapter(installation.amqp_url, QUEUE, handler, Options(report_seconds=0.05)):
        wait_for(lambda: handler.seen, what="a delivery")
        (outcome,) = installation.reported(1)
    (attempt, _) = handler.seen[0]
    assert (attempt.retry_id, attempt.round, attempt.number, attempt.retry_count) == (ID, 4, 4, 3)
    assert attempt.is_last
    assert attempt.due == dt.datetime.fromtimestamp(1_700_000_000.5, dt.UTC)
    assert attempt.first_failed == dt.datetime.fromtimestamp(1_700_000_000, dt.UTC)
    assert attempt.deadline == dt.datetime.fromtimestamp(1_700_000_060, dt.UTC)
    assert (outcome.retry_id, outcome.round, outcome.retry_count) == (ID, 4, 3)
    assert 0 <= outcome.duration_ms < 60_000


def test_a_later_failure_carries_the_round_that_failed(
    installation: ClientInstallation, adapter: type[Consumer]
) -> None:
    installation.publish(b"again", "m-1", headers=RETURNED)
    with adapter(installation.amqp_url, QUEUE, fails(KeyError("x")), Options(report_starts=False)):
        request = installation.take()
    own = {name: value for name, value in RETURNED.items() if name.startswith("tarry-")}
    assert own.items() <= request.headers.items()
    assert (request.headers["retry_count"], request.headers["error_type"]) == (3, "KeyError")
    assert installation.depth("retry.audit") == 0


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Final("no such order"), {"error_class": "final", "error_reason": "no such order"}),
        (RateLimited(retry_after=1.5), {"error_class": "rate_limited", "retry_after_ms": 1_500}),
        (LookupError("?"), {"error_class": "final", "error_type": "LookupError"}),
    ],
)
def test_a_handler_can_say_more(
    installation: ClientInstallation, adapter: type[Consumer], error: Exception, said: dict[str, Any]
) -> None:
    installation.publish(b"", "m-1")
    with adapter(installation.amqp_url, QUEUE, fails(error), Options(classes=Classes({LookupError: "final"}))):
        assert said.items() <= installation.take().headers.items()


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
    assert requests[b"final"]["ratio"] == (0.1 if adapter is AioPika else 0)


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


def test_what_was_forwarded_from_another_queue_is_a_new_message(
    installation: ClientInstallation, adapter: type[Consumer]
) -> None:
    handler = Handler()
    installation.publish(b"", "m-1", headers=RETURNED | {"tarry-queue": "elsewhere"})
    with adapter(installation.amqp_url, QUEUE, handler, Options(report_batch=1)):
        wait_for(lambda: handler.seen, what="a delivery")
    assert handler.seen[0][0] == Attempt(QUEUE, "m-1")
    assert installation.depth("retry.audit") == 0
