"""Decisions from history, from end to end: an error whose retries never succeed is given up, other errors of the same
queue are not, the share that is still tried notices the recovery, and every message is accounted for.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pika
import pytest

from tarry.analytics.rollups import count_new_steps
from tarry.client import Attempt, Options
from tarry.core.adaptive import draw_of
from tarry.store.database import SessionSettings
from tests.acceptance.audited import AuditedInstallation
from tests.integration.client.adapters import Blocking
from tests.support.cli import run_cli
from tests.support.hurry import HURRIED
from tests.support.spaces import Database, Vhost
from tests.support.store import in_session
from tests.support.waiting import wait_for

POLICIES = """
[ladder]
levels = 4

[[base]]
name = "learning"
max_retries = 2
adaptive = { give_up_below = "5%", after = 50, lasting = "0s", try = "5%" }

[[policy]]
name = "cards"
match = { queue = "cards" }
extends = "learning"
schedule = ["100ms"]
adaptive = { try = "50%" }

[[policy]]
name = "default"
extends = "learning"
schedule = ["100ms"]
without = ["adaptive"]
"""
QUEUE, HOPELESS, PASSING = "cards", b"declined", b"busy"
REASON = "given up: 0 of 60 retries of this error succeeded (below 5%)"


@pytest.fixture
def installation(vhost: Vhost, database: Database, tmp_path: Path) -> Iterator[AuditedInstallation]:
    with closing(
        AuditedInstallation(vhost.amqp_url, vhost.management_url, database.dsn, tmp_path / "topology", POLICIES)
    ) as made:
        yield made.apply()


class Bank:
    """Declines every card until it has recovered. A busy bank answers the first retry."""

    recovered = False

    def __call__(self, attempt: Attempt, body: bytes) -> None:
        if body == HOPELESS and not (self.recovered and attempt.round):
            raise ValueError("the card was declined")
        if body == PASSING and not attempt.round:
            raise TimeoutError("the bank is busy")


def publish(installation: AuditedInstallation, name: str, body: bytes, number: int) -> None:
    for place in range(number):
        about = pika.BasicProperties(delivery_mode=2, message_id=f"{name}-{place}")
        installation.channel.basic_publish("", QUEUE, body, about, mandatory=True)


def ends(installation: AuditedInstallation, name: str) -> list[tuple[str, str, str | None]]:
    """Id, state and reason of those that have come to an end."""
    sql = (
        "select id::text, state, review_reason from retry "
        "where message_id like %s and state in ('succeeded', 'in_review')"
    )
    return installation.rows(sql, f"{name}-%")


def wait_ends(installation: AuditedInstallation, name: str, number: int) -> list[tuple[str, str, str | None]]:
    wait_for(lambda: len(ends(installation, name)) == number, deadline=120, what=f"the end of {name}")
    return ends(installation, name)


def given_up(installation: AuditedInstallation) -> list[dict[str, Any]]:
    done = run_cli(["adaptive", "list", "--json"], installation.environment)
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)["given_up"]
    return found


def count_history(installation: AuditedInstallation) -> None:
    in_session(installation.dsn, count_new_steps, SessionSettings.STATISTICS)


def test_adaptive_gives_up_an_error_and_notices_its_recovery(installation: AuditedInstallation) -> None:
    bank = Bank()
    installation.declare(QUEUE)
    count_history(installation)
    installation.start(1, **HURRIED, TARRY_LOOK_EVERY="off")
    (router,) = installation.routers
    with Blocking(installation.amqp_url, QUEUE, bank, Options(report_seconds=0.1)):
        publish(installation, "a", HOPELESS, 30)
        publish(installation, "b", PASSING, 60)
        exhausted = wait_ends(installation, "a", 30)
        assert {reason for _, _, reason in exhausted} == {"exhausted: 2 of 2 retries spent"}
        wait_ends(installation, "b", 60)

        count_history(installation)
        wait_for(lambda: given_up(installation), deadline=60, what="the error to be given up")
        (found,) = given_up(installation)
        assert (found["queue"], found["policy"], found["error_type"]) == (QUEUE, "cards", "ValueError")
        assert (found["succeeded"], found["failed"], found["reason"]) == (0, 60, REASON)
        router.wait_logged("error given up")

        publish(installation, "c", HOPELESS, 40)
        publish(installation, "d", PASSING, 10)
        assert {state for _, state, _ in wait_ends(installation, "d", 10)} == {"succeeded"}
        tried = 0
        for retry, state, reason in wait_ends(installation, "c", 40):
            is_tried = draw_of(retry) < 0.5
            tried += is_tried
            assert (state, reason) == ("in_review", "exhausted: 2 of 2 retries spent" if is_tried else REASON)
        assert router.metric("tarry_adaptive_total", policy="cards", outcome="given_up") == 40 - tried
        assert router.metric("tarry_adaptive_total", policy="cards", outcome="tried") == 2 * tried
        count_history(installation)
        assert len(given_up(installation)) == 1, "what went to review untried is no evidence"

        bank.recovered = True
        publish(installation, "e", HOPELESS, 60)
        ended = Counter(state for _, state, _ in wait_ends(installation, "e", 60))
        assert ended["in_review"] > 0 < ended["succeeded"]
        count_history(installation)
        wait_for(lambda: not given_up(installation), deadline=60, what="the recovery to be noticed")
        router.wait_logged("error retried again")
        publish(installation, "f", HOPELESS, 20)
        assert {state for _, state, _ in wait_ends(installation, "f", 20)} == {"succeeded"}

    in_review = installation.number("select count(*) from retry where state = 'in_review'")
    assert in_review == 30 + 40 + ended["in_review"]
    assert installation.depth("manual-review.pending") == in_review
    assert installation.number("select count(*) from retry") == 30 + 60 + 40 + 10 + 60 + 20
    installation.wait_verified()
