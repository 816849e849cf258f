"""S2, the run processor: final, retryable and rate limited errors; 60 s doubling to an hour, eight attempts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.acceptance.serving import REVIEW, Stage, serving
from tests.harness.spaces import Database, Vhost

SCALE = 5e-4
"""A minute becomes 30 ms, an hour 1.8 s."""
DELAYS = [30, 60, 120, 240, 480, 960, 1_800, 1_800]
QUEUE = "runs.process"


def fail(stage: Stage, message_id: str, **said: Any) -> None:
    stage.request(b"run", message_id=message_id, original_queue=QUEUE, **said)


def test_the_run_processors_retries(vhost: Vhost, database: Database, tmp_path: Path) -> None:
    with serving(vhost, database, tmp_path, scale=SCALE) as stage:
        stage.queue(QUEUE)

        # Retryable: the schedule to its end, then a person.
        stage.work(QUEUE, "run-1")
        stage.follow(QUEUE, stage.arrival(QUEUE))
        assert stage.delays("run-1") == DELAYS
        assert stage.seen[-1].headers["review_reason"] == "exhausted: 8 of 8 retries spent"

        # Final, by its type and by what the request says: never retried.
        fail(stage, "run-2", error_type="schema.ValidationError")
        fail(stage, "run-3", error_class="final", error_reason="no such model")
        for _ in range(2):
            assert stage.reviewed().headers["review_reason"] == "the error is final: it is not worth a retry"
        assert stage.depth(QUEUE) == 0

        # Rate limited with a wait, twelve times over: as told, and no attempt is spent.
        said: dict[str, str | int] = {}
        for _ in range(12):
            fail(stage, "run-4", error_class="rate_limited", retry_after_ms=250, **said)
            arrival = stage.arrival(QUEUE)
            arrival.assert_on_time()
            assert (arrival.headers["tarry-count"], arrival.headers["retry_count"]) == (0, 0)
            said = {name: value for name, value in arrival.headers.items() if name.startswith("tarry-")}
            stage.ack(arrival)
        assert stage.delays("run-4") == [250] * 12

        # Without a wait it backs off as usual, and does spend one.
        fail(stage, "run-4", error_type="RateLimitError", **said)
        arrival = stage.arrival(QUEUE)
        assert arrival.headers["tarry-count"] == 1
        stage.ack(arrival)
        assert stage.delays("run-4")[-1] == 30
        assert stage.actions("scheduled", "run-4")[-1]["error_class"] == "rate_limited"

        # Retries wait elsewhere, so new work is never behind them.
        for number in range(50):
            fail(stage, f"waiting-{number}", error_class="rate_limited", retry_after_ms=60_000)
        stage.work(QUEUE, "new")
        assert stage.arrival(QUEUE).properties.message_id == "new"
        assert stage.depth(REVIEW) == 0
