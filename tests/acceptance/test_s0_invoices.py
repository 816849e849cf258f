"""S0, the invoice platform: 2 s doubling to a minute, up to a second of jitter, three retries; a protobuf envelope."""

from __future__ import annotations

import json
from pathlib import Path

from tarry.contract.retry_pb2 import RetryMessage
from tests.acceptance.serving import Stage, assert_within, serving
from tests.harness.spaces import Database, Vhost
from tests.harness.waiting import wait_for

SCALE = 0.05
"""2 s become 100 ms, a minute 3 s, a second of jitter 50 ms."""


def envelope(message_id: str, **fields: object) -> bytes:
    given = {"message_id": message_id, "original_payload": b"\x00invoice", "original_queue": "invoices"} | fields
    return RetryMessage(**given).SerializeToString()  # type: ignore[arg-type]


def play(stage: Stage, message_id: str, most: int | None, after: int) -> list[dict[str, object]]:
    """Like the platform's own consumer: it sends an envelope for each failure, and takes the returns."""
    asked = {} if most is None else {"max_retries": most}
    for count in range(after + 1):
        body = envelope(message_id, retry_count=count, error_reason="database locked", **asked)
        stage.request(body, "application/x-protobuf")
        if count < after:
            arrival = stage.arrival("invoices")
            arrival.assert_on_time()
            assert arrival.body == b"\x00invoice"
            assert arrival.properties.message_id == message_id
            assert arrival.headers["retry_count"] == count + 1
            stage.ack(arrival)
    return stage.actions("scheduled", message_id)


def test_the_invoice_platforms_retries(vhost: Vhost, database: Database, tmp_path: Path) -> None:
    with serving(vhost, database, tmp_path, scale=SCALE, granularity="5ms") as stage:
        stage.queue("invoices")

        play(stage, "inv-1", None, after=3)
        reviewed = stage.reviewed()
        assert reviewed.headers["review_reason"] == "exhausted: 3 of 3 retries spent"
        assert RetryMessage.FromString(reviewed.body).message_id == "inv-1"
        assert_within(stage.delays("inv-1"), [100, 200, 400], [50, 50, 50])

        play(stage, "inv-2", 7, after=7)
        assert stage.reviewed().headers["review_reason"] == "exhausted: 7 of 7 retries spent"
        capped = [100, 200, 400, 800, 1_600, 3_000, 3_000]
        assert_within(stage.delays("inv-2"), capped, [50] * 7)
        assert len(set(stage.delays("inv-2")[-2:] + stage.delays("inv-1"))) > 3, "jitter is drawn anew each time"

        def counted() -> bool:
            return stage.metric("retries_executed_total") == 10

        assert (stage.metric("retries_scheduled_total"), stage.metric("retries_exhausted_total")) == (10, 2)
        wait_for(counted, what="the tap to count ten returns")
        wait_for(lambda: stage.metric("retry_queue_depth") == 0, deadline=40, what="the depth to be measured again")


def test_a_json_envelope_and_a_moment_asked_for(vhost: Vhost, database: Database, tmp_path: Path) -> None:
    settings = {"DEFAULT_MAX_RETRIES": "1", "MANUAL_REVIEW_QUEUE": "manual-review.pending"}
    with serving(vhost, database, tmp_path, scale=SCALE, environment=settings) as stage:
        stage.queue("invoices")
        body = {"message_id": "inv-3", "original_payload": "aGk=", "original_queue": "invoices"}
        stage.request(b"hi", message_id="warm-up", original_queue="invoices")
        now = int(stage.arrival("invoices").at_ms)
        moment = now + 1_500
        stage.request(json.dumps(body | {"next_retry_at_ms": moment}).encode(), "application/json")
        arrival = stage.arrival("invoices")
        arrival.assert_on_time()
        assert arrival.at_ms >= moment
        assert (arrival.body, arrival.properties.content_type) == (b"hi", None)
        stage.request(json.dumps(body | {"retry_count": 1}).encode(), "application/json")
        assert stage.reviewed().headers["review_reason"] == "exhausted: 1 of 1 retries spent"
