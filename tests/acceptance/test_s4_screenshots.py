"""S4, the screenshot API: 5 s, 25 s, 125 s, three retries, classed by the type of the error."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.shipped import serving
from tests.support.spaces import Database, Vhost

SCALE = 0.005
"""5 s become 25 ms, 125 s 625 ms."""
QUEUE = "screenshots.jobs"
FINAL = (
    "InvalidUrlError",
    "ForbiddenError",
    "IllegalArgumentException",
    "java.lang.SecurityException",
    "java.lang.IllegalStateException: the page is closed",
    "com.example.InsufficientCredits",
)
RETRYABLE = ("java.net.SocketTimeoutException", "ConnectException", "java.io.IOException: broken pipe")


def test_the_screenshot_apis_retries(vhost: Vhost, database: Database, tmp_path: Path) -> None:
    with serving(vhost, database, tmp_path, scale=SCALE) as service:
        service.queue(QUEUE)

        # Five seconds times five, three times, then a person.
        service.work(QUEUE, "shot-1", b"https://example.org")
        service.follow(QUEUE, service.arrival(QUEUE))
        assert service.delays("shot-1", 3) == [25, 125, 625]
        assert service.seen[-1].headers["review_reason"] == "exhausted: 3 of 3 retries spent"

        # The type of the error decides its class, with or without its package.
        for error in FINAL:
            service.request(b"", message_id=error, original_queue=QUEUE, error_type=error)
            reviewed = service.reviewed()
            assert (reviewed.properties.message_id, reviewed.headers["review_reason"]) == (
                error,
                "the error is final: it is not worth a retry",
            )
        for error in RETRYABLE:
            service.request(b"", message_id=error, original_queue=QUEUE, error_type=error)
            arrival = service.arrival(QUEUE)
            assert (arrival.properties.message_id, arrival.headers["tarry-count"]) == (error, 1)
            service.ack(arrival)
            assert service.delays(error, 1) == [25]
        for error, wait in (("NavigationTimeout", 0), ("RateLimitError", 250)):
            service.request(b"", message_id=error, original_queue=QUEUE, error_type=error, retry_after_ms=wait)
        counts = {}
        for _ in range(2):
            arrival = service.arrival(QUEUE)
            arrival.assert_on_time()
            counts[arrival.properties.message_id] = arrival.headers["tarry-count"]
            service.ack(arrival)
        assert counts == {"NavigationTimeout": 1, "RateLimitError": 0}
        assert (service.delays("NavigationTimeout", 1), service.delays("RateLimitError", 1)) == ([25], [250])
