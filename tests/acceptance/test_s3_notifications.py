"""S3, the notification service: a policy for each priority, up to 30 % of jitter, none for an inactive device."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.shipped import REVIEW, ShippedService, assert_within, serving
from tests.support.spaces import Database, Vhost

SCALE = 0.001
"""A second becomes a millisecond."""
QUEUE = "notifications.push"
DELAYS = {
    "critical": [10, 20, 40, 80, 160, 300, 300, 300, 300, 300],
    "high": [30, 60, 120, 240, 480, 900, 900, 900],
    "medium": [120, 240, 480, 960, 1_920],
    "low": [300, 600, 1_200],
}


def test_the_more_urgent_the_sooner_and_the_more_often(vhost: Vhost, database: Database, tmp_path: Path) -> None:
    with serving(vhost, database, tmp_path, scale=SCALE, granularity="1ms") as service:
        service.queue(QUEUE)

        service.request(b"", original_queue=QUEUE, priority="critical", error_type="DeviceInactiveError")
        assert service.reviewed().headers["review_reason"] == "the error is final: it is not worth a retry"
        assert service.depth(QUEUE) == 0

        for priority in DELAYS:
            ask(service, priority)
        reasons = reject_until_all_are_reviewed(service)
        for priority, delays in DELAYS.items():
            most = len(delays)
            found = service.delays(f"push-{priority}", most)
            assert_within(found, delays, [int(delay * 0.3) for delay in delays])
            assert found != delays, "no jitter was drawn"
            assert reasons[f"push-{priority}"] == f"exhausted: {most} of {most} retries spent"
            policies = {one["policy"] for one in service.actions("scheduled", f"push-{priority}")}
            assert policies == {f"notify-{priority}"}


def ask(service: ShippedService, priority: str) -> None:
    """The first failure says the priority; after that a bare reject is enough."""
    about = {"original_queue": QUEUE, "error_type": "SendError", "priority": priority}
    service.request(b"push", message_id=f"push-{priority}", **about)


def reject_until_all_are_reviewed(service: ShippedService) -> dict[str, str]:
    """Why each is in review, by its id. None may come early or late on its way there."""
    reasons: dict[str, str] = {}
    while len(reasons) < len(DELAYS):
        arrival = service.arrival(QUEUE, REVIEW)
        if "review_reason" in arrival.headers:
            service.ack(arrival)
            reasons[str(arrival.properties.message_id)] = arrival.headers["review_reason"]
        else:
            arrival.assert_on_time()
            service.reject(arrival)
    return reasons
