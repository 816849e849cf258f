"""Budgets are exact: with three routers that are killed meanwhile, no owner exceeds its budget by one, and none is
denied wrongly.

The numbers come from the retries themselves, and from the broker; the counters of the budgets must agree with them.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.acceptance.audited import AuditedInstallation, request_all
from tests.support.router import start_router
from tests.support.spaces import Database, Vhost
from tests.support.waiting import wait_for

CROWD = int(os.environ.get("TARRY_BUDGETS", "1000")) // 200 * 200
"""Requests; the full size is 10,000."""

OWNERS = [f"owner-{number:02}" for number in range(50)]
EACH = CROWD // 2 // len(OWNERS)
"""Requests of each owner, to each of the two queues."""
LIMIT = max(2, EACH * 3 // 10)
KILLS = 3

DEFERRED, REVIEWED = "defer.jobs", "review.jobs"
TOTALS = "select count(distinct message_id) from retry where state in ('scheduled', 'in_review')"
"""A request that is delivered again after its retry went to review becomes another retry, which goes to review too."""


def distant_zone() -> str:
    """A time zone in which it is about noon: no midnight comes near during the test."""
    hour = time.gmtime().tm_hour
    return f"Etc/GMT{hour - 12:+d}" if hour != 12 else "UTC"  # Etc/GMT+5 is five hours behind UTC


ZONE = distant_zone()
BUDGET = f'per = "owner", limit = {LIMIT}, every = "1d", zone = "{ZONE}"'
POLICIES = f"""
[ladder]
levels = 6

[[policy]]
name = "deferring"
match = {{ queue = "defer.*" }}
schedule = ["1h"]
max_retries = 3
budget = [
  {{ {BUDGET}, spread = "2h" }},
  {{ per = "policy", limit = {CROWD}, every = "1mo", unit = "cost", over = "review" }},
]

[[policy]]
name = "reviewing"
schedule = ["1h"]
max_retries = 3
budget = {{ {BUDGET}, over = "review" }}
"""


@pytest.fixture
def installation(vhost: Vhost, database: Database, tmp_path: Path) -> Iterator[AuditedInstallation]:
    with closing(
        AuditedInstallation(vhost.amqp_url, vhost.management_url, database.dsn, tmp_path / "topology", POLICIES)
    ) as made:
        yield made.apply()


def publish(installation: AuditedInstallation) -> None:
    """The requests of all owners, mixed."""
    for queue in (DEFERRED, REVIEWED):
        installation.declare(queue)
        owners = OWNERS * EACH
        random.Random(19).shuffle(owners)
        names = [f"{queue}-{number}" for number in range(len(owners))]
        request_all(installation, queue, names, headers=_headers(owners))


def _headers(owners: list[str]) -> Callable[[], dict[str, str]]:
    """The headers of one request after the other."""
    left = iter(owners)
    return lambda: {"owner": next(left)}


def kill_and_replace(installation: AuditedInstallation) -> list[int]:
    """Kills one router after another with batches in progress, at the moments given by how much is recorded. Returns
    how many requests were recorded at each kill.
    """
    killed: list[int] = []
    for step in range(1, KILLS + 1):
        mark = CROWD * step // (KILLS + 2)
        wait_for(lambda mark=mark: installation.number(TOTALS) >= mark, deadline=120, what=f"{mark} records")  # type: ignore[misc]
        victim = installation.routers.pop(0)
        victim.kill()
        killed.append(installation.number(TOTALS))
        installation.routers.append(start_router(installation, TARRY_BATCH="50"))
    return killed


def acknowledge_all(installation: AuditedInstallation) -> None:
    """Waits until every request is acknowledged, also those that a killed router had and another one repeats.

    The broker does not count what a router has and has not acknowledged yet: stopping the routers gives it back.
    """
    left = 1
    while left:
        wait_for(lambda: installation.depth("retry.scheduled") == 0, deadline=120, what="all to be consumed")
        for router in installation.routers:
            router.stop()
        left = installation.depth("retry.scheduled")
        installation.routers.clear()
        installation.start(1)


def days(installation: AuditedInstallation) -> dict[str, Counter[int]]:
    """How many retries of each owner come due on each day, counted from today."""
    today = datetime.now(ZoneInfo(ZONE)).date()
    found: dict[str, Counter[int]] = defaultdict(Counter)
    for owner, due in installation.rows("select owner, due_at from retry where queue = %s", DEFERRED):
        found[owner][(due.astimezone(ZoneInfo(ZONE)).date() - today).days] += 1
    return found


def expected() -> Counter[int]:
    """As many days as needed, each but the last used up."""
    whole, rest = divmod(EACH, LIMIT)
    return Counter(dict.fromkeys(range(whole), LIMIT) | ({whole: rest} if rest else {}))


def counters(installation: AuditedInstallation, policy: str) -> dict[tuple[str, int], int]:
    today = datetime.now(ZoneInfo(ZONE)).replace(hour=0, minute=0, second=0, microsecond=0)
    rows = installation.rows("select subject, starts, used from budget_use where budget like %s", f"{policy}/owner/%")
    return {(owner, (starts - today + timedelta(hours=1)).days): used for owner, starts, used in rows}


@pytest.mark.timeout(300 + CROWD // 20)
def test_no_owner_exceeds_its_budget_and_none_is_denied_wrongly(
    installation: AuditedInstallation, record_property: Any
) -> None:
    publish(installation)
    started = time.monotonic()
    installation.start(3, TARRY_BATCH="50")
    killed = kill_and_replace(installation)
    wait_for(lambda: installation.number(TOTALS) == CROWD, deadline=180 + CROWD / 40, what="all to be recorded")
    seconds = time.monotonic() - started
    acknowledge_all(installation)

    found = days(installation)
    assert set(found) == set(OWNERS)
    assert {owner: dict(used) for owner, used in found.items()} == {owner: dict(expected()) for owner in OWNERS}
    assert counters(installation, "deferring") == {
        (owner, day): used for owner, by_day in found.items() for day, used in by_day.items()
    }

    states = installation.rows(
        "select owner, state, count(distinct message_id) from retry where queue = %s group by owner, state", REVIEWED
    )
    assert {(owner, state): count for owner, state, count in states} == {
        (owner, state): count
        for owner in OWNERS
        for state, count in (("scheduled", LIMIT), ("in_review", EACH - LIMIT))
    }
    assert set(counters(installation, "reviewing").values()) == {LIMIT}
    again = installation.number("select count(*) from retry") - CROWD
    assert again == installation.number(
        "select count(*) - count(distinct message_id) from retry where state = 'in_review'"
    )
    assert installation.number("select count(*) from budget_charge") == CROWD + again
    assert installation.number("select sum(used) from budget_use where budget like 'deferring/policy/%%'") == CROWD // 2
    _, answer = installation.audit("verify", "--grace", "2s", "--settle", "500ms", "--patience", "0s")
    assert (answer["missing"], answer["balance"]["rounds"], answer["balance"]["lost"]) == ([], CROWD + again, 0)
    charged = installation.number(
        "select count(*) from budget_charge as charge where charged_at < (select max(at) from transition"
        " where retry_id = charge.retry_id and state = 'claimed')"
    )
    about = {"requests": CROWD, "killed at": killed, "seconds": round(seconds, 1), "charged before a kill": charged}
    record_property("budgets", about)
    print(about)  # noqa: T201 - for the proof at its full size
