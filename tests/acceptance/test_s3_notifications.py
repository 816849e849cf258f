"""S3, the notification service: a policy for each priority, up to 30 % of jitter, none for an inactive device."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.serving import Stage, assert_within, serving
from tests.harness.spaces import Database, Vhost

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
    with serving(vhost, database, tmp_path, scale=SCALE, granularity="1ms") as stage:
        stage.queue(QUEUE)

        stage.request(b"", original_queue=QUEUE, priority="critical", error_type="DeviceInactiveError")
        assert stage.reviewed().headers["review_reason"] == "the error is final: it is not worth a retry"
        assert stage.depth(QUEUE) == 0

        for priority, delays in DELAYS.items():
            follow(stage, priority)
            found, most = stage.delays(f"push-{priority}"), len(delays)
            assert_within(found, delays, [int(delay * 0.3) for delay in delays])
            assert found != delays, "no jitter was drawn"
            assert stage.seen[-1].headers["review_reason"] == f"exhausted: {most} of {most} retries spent"
            policies = {one["policy"] for one in stage.actions("scheduled", f"push-{priority}")}
            assert policies == {f"notify-{priority}"}


def follow(stage: Stage, priority: str) -> None:
    """The first failure says the priority; after that a bare reject is enough."""
    message_id = f"push-{priority}"
    stage.request(b"push", message_id=message_id, original_queue=QUEUE, error_type="SendError", priority=priority)
    first = stage.arrival(QUEUE)
    first.assert_on_time()
    stage.follow(QUEUE, first)
