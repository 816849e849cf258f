"""`tarry serve --processes N`: several routers from one command."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import urllib.request
from collections.abc import Callable
from typing import Any

from tests.support.installation import POLICIES, Installation
from tests.support.router import IN_TIME, START, Router
from tests.support.waiting import wait_for

Start = Callable[..., Router]


def two_free_ports() -> int:
    """The first of two neighbours that are free now, and that no connection gets as its own port."""
    while True:
        with socket.socket() as one, socket.socket() as other, contextlib.suppress(OSError):
            port = random.randint(15_000, 32_000)
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 1))
            return port


def started(parent: Router, number: int) -> list[dict[str, Any]]:
    """The first lines of one of its processes: one for each time that it started."""
    return [line for line in parent.lines() if line["event"] == "started" and line["process"] == number]


def address(parent: Router, number: int, times: int = 1) -> str:
    """Where a process listens, once it has started so often and is ready."""
    wait_for(
        lambda: len(started(parent, number)) >= times or not parent.running,
        deadline=START,
        what=f"process {number} to start",
    )
    assert parent.running, f"the routers ended: {parent.log.read_text()[-2000:]}"
    found = str(started(parent, number)[times - 1]["http"])
    wait_for(lambda: is_ready(found), deadline=START, what=f"process {number} to be ready")
    return found


def read(at: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{at}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def is_ready(at: str) -> bool:
    try:
        return bool(read(at, "/readyz"))
    except OSError:
        return False


def scheduled(at: str) -> float:
    lines = [line for line in read(at, "/metrics").splitlines() if line.startswith("retries_scheduled_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def pids(installation: Installation) -> set[int]:
    """Of the routers that report to Postgres."""
    return {int(row[0]) for row in installation.rows("select process from router")}


def test_serve_processes_share_the_requests_and_each_has_metrics(installation: Installation, start: Start) -> None:
    port, queue = two_free_ports(), installation.declare("slow.orders")
    parent = start(TARRY_PROCESSES="2", HTTP_PORT=str(port), TARRY_BATCH="5")
    first, second = address(parent, 1), address(parent, 2)
    assert (first, second) == (f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}")
    for number in range(1_000):
        installation.request(queue, f"m{number}")
    wait_for(lambda: scheduled(first) + scheduled(second) == 1_000, what="all to be scheduled")
    assert min(scheduled(first), scheduled(second)) > 0
    wait_for(lambda: len(pids(installation)) == 2, what="both to report")
    assert parent.process.pid not in pids(installation)
    assert parent.stop() < IN_TIME
    assert parent.process.returncode == 0
    assert sorted(line["process"] for line in parent.lines() if line["event"] == "stopped") == [1, 2]
    assert parent.lines()[-1]["event"] == "all routers stopped"
    assert pids(installation) == set()


def test_serve_processes_start_one_again_that_was_killed(installation: Installation, start: Start) -> None:
    parent = start(TARRY_PROCESSES="2", HTTP_PORT="0")
    address(parent, 1)
    other = address(parent, 2)
    killed = next(iter(wait_for(lambda: pids(installation), what="a process to report")))
    os.kill(killed, signal.SIGKILL)
    ended = parent.wait_logged("router process ended")
    assert (ended["pid"], ended["signal"], ended["pause"]) == (killed, "SIGKILL", 1.0)
    again = address(parent, ended["process"], times=2)
    installation.request(installation.declare("slow.orders"), "m1")
    at = other if ended["process"] == 1 else address(parent, 1)
    wait_for(lambda: scheduled(at) + scheduled(again) == 1, what="the request to be scheduled")


def test_serve_processes_end_when_their_parent_is_killed(installation: Installation, start: Start) -> None:
    parent = start(TARRY_PROCESSES="2", HTTP_PORT="0")
    address(parent, 1)
    address(parent, 2)
    wait_for(lambda: len(pids(installation)) == 2, what="both to report")
    parent.kill()
    wait_for(lambda: not pids(installation), what="both to end, and to be removed from the list")


def test_serve_processes_end_all_if_one_cannot_start(installation: Installation, start: Start) -> None:
    port = two_free_ports()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 1))
        taken.listen()
        parent = start(TARRY_PROCESSES="2", HTTP_PORT=str(port))
        assert parent.process.wait(START) == 2
    assert parent.logged("router process cannot start")[0]["process"] == 2


def test_serve_processes_report_wrong_settings_once(installation: Installation, start: Start) -> None:
    parent = start(TARRY_PROCESSES="2", HTTP_PORT="65535")
    assert parent.process.wait(START) == 2
    assert parent.log.read_text().count("leaves no ports for 2 processes") == 1


def test_serve_processes_reload_the_topology_on_sighup(installation: Installation, start: Start) -> None:
    parent = start(TARRY_PROCESSES="2", HTTP_PORT="0")
    address(parent, 1)
    address(parent, 2)
    file = installation.folder / "tarry.toml"
    before = file.stat()
    installation.write_policies(POLICIES.replace("max_retries = 2", "max_retries = 1"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # only the signal tells
    parent.process.send_signal(signal.SIGHUP)
    wait_for(
        lambda: {line["process"] for line in parent.logged("topology reloaded")} == {1, 2},
        what="both to use the changed files",
    )
