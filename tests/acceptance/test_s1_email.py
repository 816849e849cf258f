"""S1, the e-mail dispatcher: 1m 5m 15m 1h 3h 6h 12h 24h; several instances; what is exhausted is visible to ops."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.acceptance.serving import Stage, serving
from tests.harness.spaces import Database, Vhost
from tests.harness.waiting import wait_for

SCALE = 5e-5
"""A minute becomes 3 ms, a day 4.3 s: two days in nine seconds."""
DELAYS = [3, 15, 45, 180, 540, 1_080, 2_160, 4_320]


def test_eight_attempts_over_two_days_and_then_review(vhost: Vhost, database: Database, tmp_path: Path) -> None:
    with serving(vhost, database, tmp_path, scale=SCALE) as stage:
        stage.queue("email.outbound")
        stage.work("email.outbound", "mail-1", b"Dear all", tenant="acme")
        first = stage.arrival("email.outbound")

        returns = stage.follow("email.outbound", first)

        assert stage.delays("mail-1") == DELAYS
        assert [one.headers["tarry-count"] for one in returns] == [1, 2, 3, 4, 5, 6, 7, 8]
        for one in returns:
            assert (one.body, one.headers["tenant"]) == (b"Dear all", "acme")
            assert one.key == "email.outbound"
        dead = stage.seen[-1]
        assert dead.headers["review_reason"] == "exhausted: 8 of 8 retries spent"
        assert dead.body == b"Dear all"
        (told,) = wait_for(lambda: stage.actions("to review", "mail-1"), what="the line in the log")
        assert (told["exhausted"], told["queue"], told["policy"]) == (True, "email.outbound", "email")
        assert stage.metric("retries_exhausted_total") == 1


def test_several_instances_never_send_the_same_mail_twice(vhost: Vhost, database: Database, tmp_path: Path) -> None:
    """Each mail is asked for three times over, to three instances at once; each returns once, ten seconds later."""
    with serving(vhost, database, tmp_path, scale=1 / 6) as stage, others(vhost, database, tmp_path, 2):
        stage.queue("email.bulk")
        wait_for(lambda: consumers(vhost) == 3, deadline=40, what="three instances to consume")
        for _ in range(3):
            for number in range(100):
                stage.request(b"", message_id=f"mail-{number}", original_queue="email.bulk")
        returned = Counter(wait_for_mails(stage, 100))
        assert returned == Counter(f"mail-{number}" for number in range(100))
        assert stage.depth("retry.scheduled") == 0
        assert stage.depth("email.bulk") == 0


def wait_for_mails(stage: Stage, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        arrival = stage.arrival("email.bulk")
        arrival.assert_on_time()
        stage.ack(arrival)
        found.append(str(arrival.properties.message_id))
    wait_for(lambda: stage.depth("retry.scheduled") == 0, what="every request to be settled")
    return found


def consumers(vhost: Vhost) -> int:
    return sum(one["queue"]["name"] == "retry.scheduled" for one in vhost.api("consumers/{vhost}"))


class others:  # noqa: N801 - used like a function
    """More instances of the same service."""

    def __init__(self, vhost: Vhost, database: Database, folder: Path, count: int) -> None:
        self._settings = os.environ | {
            "RABBITMQ_URL": vhost.amqp_url,
            "RABBITMQ_MANAGEMENT_URL": vhost.management_url,
            "DATABASE_URL": database.dsn,
            "TARRY_TOPOLOGY": str(folder / "topology"),
            "HTTP_PORT": "0",
        }
        self._count = count
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> None:
        command = [sys.executable, "-m", "tarry", "serve"]
        self._running = [
            subprocess.Popen(command, env=self._settings, stderr=subprocess.DEVNULL) for _ in range(self._count)
        ]

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.terminate()
        assert [process.wait(30) for process in self._running] == [0] * self._count
