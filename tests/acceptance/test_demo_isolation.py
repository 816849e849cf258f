"""`tarry demo`, alone and beside a real installation; and what `tarry up` refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tarry.embedded.guardian import descendants
from tests.acceptance.audited import AuditedInstallation, request_all
from tests.acceptance.shipped import copy_of_the_shipped_topology
from tests.acceptance.up_command import objects_on, plain_environment
from tests.support.amqp import open_connection
from tests.support.cli import TARRY
from tests.support.processes import alive
from tests.support.spaces import Vhost
from tests.support.waiting import wait_for

QUICK_DEMO = """
import sys
from pathlib import Path
from tarry.cli.start import run
from tarry.demo import show

folder = Path(sys.argv.pop(1))
show.shipped = lambda: folder
run()
"""
"""The command on a copy of the shipped topology whose clock runs faster."""


def run(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*TARRY, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment, check=False)


def at(vhost: Vhost) -> list[str]:
    """The options that ask for this broker."""
    return ["--url", vhost.amqp_url, "--management-url", vhost.management_url]


def test_demo_shows_the_balance_and_leaves_the_exported_broker_alone(
    vhost: Vhost, series: str | None, exported: Mapping[str, str]
) -> None:
    done = run(plain_environment() | dict(exported), "demo", *(["--series", series] if series else []))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "balance: scheduled 42, returned 42, in review 10, lost 0" in done.stdout, done.stdout
    assert re.search(r"drift of 42 returns: p50 \d+ ms, p99 \d+ ms", done.stdout)
    assert re.search(r"Management UI, while this runs: http://127\.0\.0\.1:\d+", done.stdout)
    assert re.search(r"next invoice-\d+ for demo\.invoices at", done.stdout)
    assert "\x1b[" not in done.stdout
    assert objects_on(vhost) == []
    assert (
        "Set but not used here: DATABASE_URL, HTTP_HOST, PGHOSTADDR, PGSSLMODE, RABBITMQ_CA_FILE, RABBITMQ_"
        in done.stdout
    )


def test_demo_that_is_killed_leaves_no_process_behind(series: str | None) -> None:
    command = [*TARRY, "demo", *(["--series", series] if series else [])]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=plain_environment()
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("sent "):
                break
        children = descendants(demo.pid)
        names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in children}
        assert {"beam.smp", "postgres"} <= names
        demo.kill()
    wait_for(lambda: not any(alive(pid) for pid in children), deadline=60)


def test_demo_uses_the_broker_that_the_url_option_names(vhost: Vhost, tmp_path: Path) -> None:
    folder = copy_of_the_shipped_topology(tmp_path / "topology", scale=0.1)
    command = [sys.executable, "-c", QUICK_DEMO, str(folder), "demo", *at(vhost)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=plain_environment(), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost 0" in done.stdout
    assert {"demo.invoices", "retry.scheduled"} <= set(objects_on(vhost))
    assert "stay on that broker" in done.stdout


def test_url_option_refuses_a_broker_with_another_router(
    vhost: Vhost, installation: AuditedInstallation, open_folder: Path
) -> None:
    installation.start()
    assert installation.command("intake", "pause")[0] == 0
    with open_connection(vhost.amqp_url) as connection:
        channel = connection.channel()
        paused = lambda: not channel.queue_declare("retry.scheduled", passive=True).method.consumer_count  # noqa: E731
        wait_for(paused, what="the router to stop taking requests")
    before = objects_on(vhost)
    for command in (["demo"], ["up", "--data-dir", str(open_folder / "up")]):
        done = run(plain_environment(), *command, *at(vhost))
        assert done.returncode == 5
        assert (
            "Another router consumes from retry.audit, retry.cancelled, retry.layover and 1 more at amqp://"
            in done.stderr
        )
        assert "leave out --url" in done.stderr
        assert "guest:guest" not in done.stderr
        assert objects_on(vhost) == before
    assert list(open_folder.iterdir()) == []


def test_url_option_refuses_to_record_waiting_messages_elsewhere(
    vhost: Vhost, installation: AuditedInstallation, open_folder: Path
) -> None:
    request_all(installation, installation.declare("orders"), ["m1"])
    done = run(plain_environment(), "up", *at(vhost), "--data-dir", str(open_folder / "up"))
    assert done.returncode == 5
    assert "Messages wait in retry.scheduled at amqp://" in done.stderr
    assert installation.depth("retry.scheduled") == 1


def test_url_option_refuses_a_broker_of_another_series(vhost: Vhost) -> None:
    done = run(plain_environment(), "demo", *at(vhost), "--series", "9.9")
    assert done.returncode == 2
    assert f"is RabbitMQ {vhost.version}, not 9.9" in done.stderr
    assert objects_on(vhost) == []
