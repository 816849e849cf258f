"""S0, the invoice platform: 2 s doubling to a minute, up to a second of jitter, three retries; a protobuf envelope."""

from __future__ import annotations

import json
from pathlib import Path

from tarry.contract.retry_pb2 import RetryMessage
from tests.acceptance.shipped import ShippedService, assert_within, serving
from tests.support.spaces import Database, Vhost
from tests.support.waiting import wait_for

SCALE = 0.02
"""2 s become 40 ms, a minute 1.2 s, a second of jitter 20 ms."""


def envelope(message_id: str, **fields: object) -> bytes:
    given = {"message_id": message_id, "original_payload": b"\x00invoice", "original_queue": "invoices"} | fields
    return RetryMessage(**given).SerializeToString()  # type: ignore[arg-type]


def play(service: ShippedService, message_id: str, most: int | None, after: int) -> None:
    """Like the platform's own consumer: it sends an envelope for each failure, and takes the returns."""
    asked = {} if most is None else {"max_retries": most}
    for count in range(after + 1):
        body = envelope(message_id, retry_count=count, error_reason="database locked", **asked)
        service.request(body, "application/x-protobuf")
        if count < after:
            arrival = service.arrival("invoices")
            arrival.assert_on_time()
            assert arrival.body == b"\x00invoice"
            assert arrival.properties.message_id == message_id
            assert arrival.headers["retry_count"] == count + 1
            service.ack(arrival)


def test_the_invoice_platforms_retries(vhost: Vhost, database: Database, tmp_path: Path) -> None:
    with serving(vhost, database, tmp_path, scale=SCALE, granularity="5ms") as service:
        service.queue("invoices")

        play(service, "inv-1", None, after=3)
        reviewed = service.reviewed()
        assert reviewed.headers["review_reason"] == "exhausted: 3 of 3 retries spent"
        assert RetryMessage.FromString(reviewed.body).message_id == "inv-1"
        first = [40, 80, 160]
        inv_1 = service.delays("inv-1", 3)
        assert_within(inv_1, first, [20] * 3)

        play(service, "inv-2", 7, after=7)
        assert service.reviewed().headers["review_reason"] == "exhausted: 7 of 7 retries spent"
        capped = [40, 80, 160, 320, 640, 1_200, 1_200]
        inv_2 = service.delays("inv-2", 7)
        assert_within(inv_2, capped, [20] * 7)
        drawn = zip(inv_1 + inv_2, first + capped, strict=True)
        assert len({delay - base for delay, base in drawn}) > 2, "jitter is drawn anew each time"

        def counted() -> bool:
            return service.metric("retries_executed_total", queue="invoices", status="returned") == 10

        wait_for(lambda: service.metric("retries_exhausted_total") == 2, what="the second review to be counted")
        assert service.metric("retries_scheduled_total") == 10
        wait_for(counted, what="the tap to count ten returns")
        assert service.metric("retries_executed_total", queue="invoices", status="failed") == 10
        assert service.metric("retries_executed_total", queue="invoices", status="success") == 0
        wait_for(lambda: service.metric("retry_queue_depth") == 0, deadline=60, what="the depth to be measured again")


def test_a_json_envelope_and_a_moment_asked_for(vhost: Vhost, database: Database, tmp_path: Path) -> None:
    settings = {
        "DEFAULT_MAX_RETRIES": "1",
        "MANUAL_REVIEW_QUEUE": "manual-review.pending",
        "RETRY_POLL_INTERVAL_MS": "1000",
    }
    with serving(vhost, database, tmp_path, scale=SCALE, environment=settings) as service:
        (warning,) = service.actions("setting has no effect")
        assert (warning["level"], warning["setting"]) == ("warning", "RETRY_POLL_INTERVAL_MS")
        assert "nothing polls" in warning["do"]
        service.queue("invoices")
        body = {"message_id": "inv-3", "original_payload": "aGk=", "original_queue": "invoices"}
        service.request(b"hi", message_id="warm-up", original_queue="invoices")
        now = int(service.arrival("invoices").at_ms)
        moment = now + 1_000
        service.request(json.dumps(body | {"next_retry_at_ms": moment}).encode(), "application/json")
        arrival = service.arrival("invoices")
        arrival.assert_on_time()
        assert arrival.at_ms >= moment
        assert (arrival.body, arrival.properties.content_type) == (b"hi", None)
        service.request(json.dumps(body | {"retry_count": 1}).encode(), "application/json")
        assert service.reviewed().headers["review_reason"] == "exhausted: 1 of 1 retries spent"
