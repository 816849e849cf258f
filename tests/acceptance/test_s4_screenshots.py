"""S4, the screenshot API: 5 s, 25 s, 125 s, three retries, classed by the type of the error."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.serving import serving
from tests.harness.spaces import Database, Vhost

SCALE = 0.02
"""5 s become 100 ms, 125 s 2.5 s."""
QUEUE = "screenshots.jobs"


def test_the_screenshot_apis_retries(vhost: Vhost, database: Database, tmp_path: Path) -> None:
    with serving(vhost, database, tmp_path, scale=SCALE) as stage:
        stage.queue(QUEUE)

        # Five seconds times five, three times, then a person.
        stage.work(QUEUE, "shot-1", b"https://example.org")
        stage.follow(QUEUE, stage.arrival(QUEUE))
        assert stage.delays("shot-1") == [100, 500, 2_500]
        assert stage.seen[-1].headers["review_reason"] == "exhausted: 3 of 3 retries spent"

        # The type of the error decides its class.
        for error in ("InvalidUrlError", "ForbiddenError"):
            stage.request(b"", message_id=error, original_queue=QUEUE, error_type=error)
            assert stage.reviewed().headers["review_reason"] == "the error is final: it is not worth a retry"
        for error, wait in (("NavigationTimeout", 0), ("RateLimitError", 1_000)):
            stage.request(b"", message_id=error, original_queue=QUEUE, error_type=error, retry_after_ms=wait)
        counts = {}
        for _ in range(2):
            arrival = stage.arrival(QUEUE)
            arrival.assert_on_time()
            counts[arrival.properties.message_id] = arrival.headers["tarry-count"]
            stage.ack(arrival)
        assert counts == {"NavigationTimeout": 1, "RateLimitError": 0}
        assert (stage.delays("NavigationTimeout"), stage.delays("RateLimitError")) == ([100], [1_000])
