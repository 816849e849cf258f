"""S3, the notification service: notifications to inactive devices are skipped, and no others, whatever fails meanwhile.

The shipped policies, the endpoint of examples/eligibility, two routers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.audited import AuditedInstallation, Worker, request_all
from tests.acceptance.shipped import copy_of_the_shipped_topology
from tests.support.spaces import Database, Vhost
from tests.support.waiting import wait_for

CROWD = int(os.environ.get("TARRY_ELIGIBILITY", "300"))
"""Notifications, a tenth of them to inactive devices. The full size is 10,000."""

SCALE = 0.01
"""Critical notifications wait 100 ms for their first retry."""

QUEUE = "notifications.push"
VARIABLE = "NOTIFICATIONS_ELIGIBILITY_URL"
SERVER = Path(__file__).parents[2] / "examples" / "eligibility" / "server.py"

DEVICES = [str(number) for number in range(CROWD)]
INACTIVE = {device for device in DEVICES if int(device) % 10 == 7}
ACTIVE = set(DEVICES) - INACTIVE


@pytest.fixture
def installation(vhost: Vhost, database: Database, tmp_path: Path) -> Iterator[AuditedInstallation]:
    """On the shipped topology, with shorter delays. On a busy machine an answer takes more than a second."""
    folder = copy_of_the_shipped_topology(tmp_path / "topology", SCALE)
    policies = folder / "policies" / "30-notifications.toml"
    policies.write_text(policies.read_text().replace('key = "device_id"', 'key = "device_id", timeout = "30s"'))
    with closing(AuditedInstallation(vhost.amqp_url, vhost.management_url, database.dsn, folder)) as made:
        yield made.apply()


@contextmanager
def endpoint(folder: Path) -> Iterator[str]:
    """The example's server, as a process of its own."""
    file = folder / "inactive.txt"
    file.write_text("\n".join(sorted(INACTIVE)))
    with subprocess.Popen([sys.executable, str(SERVER), "0", str(file)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def notify(installation: AuditedInstallation, devices: list[str]) -> None:
    """A critical notification for each of these devices has failed. The id of the message is that of its device."""
    about = iter(devices)

    def headers() -> dict[str, Any]:
        return {"priority": "critical", "error_type": "SendError", "device_id": next(about)}

    request_all(installation, QUEUE, devices, headers=headers)


def skipped(installation: AuditedInstallation) -> set[str]:
    return {one for (one,) in installation.rows("select message_id from retry where state = 'skipped'")}


def balance(installation: AuditedInstallation) -> dict[str, int]:
    code, answer = installation.audit("verify")
    assert (code, answer["missing"], answer["shortages"]) == (0, [], [])
    found: dict[str, int] = answer["balance"]
    return found


@pytest.mark.timeout(300 + CROWD // 20)
def test_notifications_to_inactive_devices_are_skipped_and_no_others(
    installation: AuditedInstallation, tmp_path: Path
) -> None:
    installation.declare(QUEUE)
    with endpoint(tmp_path) as url, Worker(installation, QUEUE) as worker:
        installation.start(2, **{VARIABLE: url})
        notify(installation, DEVICES)
        wait_for(lambda: worker.total >= len(ACTIVE), deadline=120 + CROWD / 40, what="the active ones to return")
        wait_for(lambda: len(skipped(installation)) == len(INACTIVE), deadline=120, what="the inactive ones to end")
        installation.wait_checking(
            lambda: installation.transitions("returned") == len(ACTIVE), "the tap to have seen them all"
        )
    assert worker.seen == dict.fromkeys(ACTIVE, 1)
    assert skipped(installation) == INACTIVE
    found = balance(installation)
    assert (found["skipped"], found["returned"], found["rounds"]) == (len(INACTIVE), len(ACTIVE), CROWD)
    assert [found[name] for name in ("in_review", "waiting", "claimed", "duplicates", "lost")] == [0] * 5
    assert installation.depth("manual-review.pending") == installation.depth("retry.scheduled") == 0
    assert sum(router.metric("retries_skipped_total", queue=QUEUE) for router in installation.routers) == len(INACTIVE)
    assert sum(router.metric("tarry_eligibility_unknown_total") for router in installation.routers) == 0
    reason = installation.text("select reason from transition where state = 'skipped' limit 1")
    assert reason.startswith("device ")
    assert reason.endswith(" is inactive")
    kept = installation.number("select count(*) from retry where state = 'skipped' and length(body) = 64")
    assert kept == len(INACTIVE)


@pytest.mark.timeout(300 + CROWD // 20)
def test_a_router_killed_while_it_skips_loses_nothing(installation: AuditedInstallation, tmp_path: Path) -> None:
    """A request may be handled twice then; but every active device gets its notification, and no inactive one."""
    installation.declare(QUEUE)
    with endpoint(tmp_path) as url, Worker(installation, QUEUE) as worker:
        installation.start(2, TARRY_BATCH="20", **{VARIABLE: url})
        notify(installation, DEVICES)
        wait_for(lambda: skipped(installation), deadline=60, what="the first skip")
        installation.routers[0].kill()
        wait_for(lambda: set(worker.seen) >= ACTIVE, deadline=180 + CROWD / 20, what="every active one to return")
        wait_for(lambda: skipped(installation) == INACTIVE, deadline=120, what="every inactive one to end")
        installation.wait_verified()
    assert set(worker.seen) == ACTIVE
    assert installation.depth("manual-review.pending") == 0


@pytest.mark.parametrize("on_error", ["allow", "skip"])
def test_an_endpoint_that_is_down_follows_on_error(installation: AuditedInstallation, on_error: str) -> None:
    installation.declare(QUEUE)
    policies = installation.folder / "policies" / "30-notifications.toml"
    policies.write_text(
        policies.read_text().replace('key = "device_id"', f'key = "device_id", on_error = "{on_error}"')
    )
    devices = DEVICES[:100]
    with Worker(installation, QUEUE) as worker:
        installation.start(1, **{VARIABLE: "http://127.0.0.1:9/eligible"})
        router = installation.routers[0]
        notify(installation, devices)
        if on_error == "allow":
            wait_for(lambda: set(worker.seen) == set(devices), deadline=60, what="all of them to return")
            assert skipped(installation) == set()
        else:
            wait_for(lambda: skipped(installation) == set(devices), deadline=60, what="all of them to be skipped")
        wait_for(
            lambda: router.metric("tarry_eligibility_unknown_total", treated=on_error) == len(devices),
            what="the messages to be counted",
        )
        assert len(router.logged("eligibility is not known")) == 1
        assert "does not answer" in str(router.ready())
    assert worker.total == (len(devices) if on_error == "allow" else 0)
