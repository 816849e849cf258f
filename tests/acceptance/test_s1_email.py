"""S1, the e-mail dispatcher: 1m 5m 15m 1h 3h 6h 12h 24h; several instances; what is exhausted is visible to ops."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pika

from tests.acceptance.shipped import ShippedService, serving
from tests.support import forking
from tests.support.amqp import open_connection
from tests.support.spaces import Database, Vhost
from tests.support.waiting import wait_for

SCALE = 1 / 60_000
"""A minute becomes a millisecond: two days in three seconds."""
DELAYS = [1, 5, 15, 60, 180, 360, 720, 1_440]
MAILS = 50


def test_eight_attempts_over_two_days_and_then_review(vhost: Vhost, database: Database, tmp_path: Path) -> None:
    with serving(vhost, database, tmp_path, scale=SCALE) as service:
        service.queue("email.outbound")
        service.work("email.outbound", "mail-1", b"Dear all", tenant="acme")
        first = service.arrival("email.outbound")

        returns = service.follow("email.outbound", first)

        assert service.delays("mail-1", 8) == DELAYS
        assert [one.headers["tarry-count"] for one in returns] == [1, 2, 3, 4, 5, 6, 7, 8]
        for one in returns:
            assert (one.body, one.headers["tenant"]) == (b"Dear all", "acme")
            assert one.key == "email.outbound"
        dead = service.seen[-1]
        assert dead.headers["review_reason"] == "exhausted: 8 of 8 retries spent"
        assert dead.body == b"Dear all"
        (told,) = wait_for(lambda: service.actions("sent to review", "mail-1"), what="the line in the log")
        assert (told["exhausted"], told["queue"], told["policy"]) == (True, "email.outbound", "email")
        assert service.metric("retries_exhausted_total") == 1


def test_several_instances_never_send_the_same_mail_twice(vhost: Vhost, database: Database, tmp_path: Path) -> None:
    """Each mail is asked for three times over, to three instances at once; each returns once, six seconds later."""
    with serving(vhost, database, tmp_path, scale=1 / 10) as service, others(vhost, database, tmp_path, 2):
        service.queue("email.bulk")
        wait_for(lambda: consumers(vhost) == 3, deadline=120, what="three instances to consume")
        ask_three_times(vhost)
        returned = Counter(wait_for_mails(service, MAILS))
        assert returned == Counter(f"mail-{number}" for number in range(MAILS))
        assert service.depth("retry.scheduled") == 0
        assert service.depth("email.bulk") == 0


def ask_three_times(vhost: Vhost) -> None:
    """All at once, so that the last request comes long before the first return."""
    with open_connection(vhost.amqp_url) as connection:
        channel = connection.channel()
        for number in list(range(MAILS)) * 3:
            about = pika.BasicProperties(
                delivery_mode=2, message_id=f"mail-{number}", headers={"original_queue": "email.bulk"}
            )
            channel.basic_publish("", "retry.scheduled", b"", about)


def wait_for_mails(service: ShippedService, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        arrival = service.arrival("email.bulk")
        arrival.assert_on_time()
        service.ack(arrival)
        found.append(str(arrival.properties.message_id))
    wait_for(lambda: service.depth("retry.scheduled") == 0, what="every request to be settled")
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
        self._running: list[forking.Process] = []

    def __enter__(self) -> None:
        self._running = [forking.start(["serve"], self._settings, Path(os.devnull)) for _ in range(self._count)]

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.terminate()
        assert [process.wait(60) for process in self._running] == [0] * self._count
