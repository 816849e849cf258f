"""The processes of the fork server behave like any other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forking
from tests.support.waiting import wait_for

NOWHERE = {
    "RABBITMQ_URL": "amqp://127.0.0.1:1/",
    "RABBITMQ_MANAGEMENT_URL": "http://127.0.0.1:1",
    "DATABASE_URL": "postgresql://127.0.0.1:1/tarry",
    "HTTP_PORT": "0",
}


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where coverage is measured, which starts every process by itself."""
    for name in [*os.environ]:
        if name.startswith(("COVERAGE", "TARRY_TESTS_FORK")):
            monkeypatch.delenv(name)


def test_forked_process_answers_like_a_started_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    forked = forking.start(["config", "--json"], os.environ | {"HTTP_PORT": "4711"}, log)
    started = subprocess.run(
        [sys.executable, "-m", "tarry", "config", "--json"],
        env=os.environ | {"HTTP_PORT": "4711"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (forked.wait(60), log.read_text()) == (0, started.stdout)


def test_forked_process_tells_its_exit_code_and_error(tmp_path: Path) -> None:
    log = tmp_path / "log"
    forked = forking.start(["serve"], os.environ | {"HTTP_PORT": "no number"}, log)
    assert forked.wait(60) == 2
    assert "error: HTTP_PORT" in log.read_text()


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_forked_process_ends_by_a_signal(tmp_path: Path, sign: signal.Signals) -> None:
    log = tmp_path / "log"
    forked = forking.start(["serve"], os.environ | NOWHERE, log)
    wait_for(lambda: "waiting for the broker" in log.read_text() if log.exists() else None, deadline=60)
    assert forked.poll() is None
    forked.send_signal(sign)
    assert forked.wait(60) == (0 if sign is signal.SIGTERM else -sign)


def test_forked_processes_end_with_the_test_run(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = (
        "import os; from pathlib import Path; from tests.support import forking;"
        f"print(forking.start(['serve'], os.environ, Path({str(log)!r})).pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script], env=os.environ | NOWHERE, capture_output=True, check=False)
    pid = int(done.stdout)
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), deadline=60, what="it to be gone")
