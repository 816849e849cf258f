"""`tarry demo`, as a person runs it and as a script does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tarry.embedded.guardian import descendants
from tests.harness.processes import alive
from tests.harness.waiting import wait_for

DEMO = [sys.executable, "-m", "tarry", "demo"]


def without_broker_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("RABBITMQ_URL", "DATABASE_URL", "BROKER")}


def test_it_ends_with_the_balance_and_exit_code_0() -> None:
    done = subprocess.run(DEMO, capture_output=True, text=True, timeout=140, env=without_broker_settings(), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "balance: scheduled 42, returned 42, in review 10, lost 0" in done.stdout
    assert re.search(r"drift of 42 returns: p50 \d+ ms, p99 \d+ ms", done.stdout)
    assert re.search(r"Management UI, while this runs: http://127\.0\.0\.1:\d+", done.stdout)
    assert re.search(r"next invoice-\d+ for demo\.invoices at", done.stdout)
    assert "\x1b[" not in done.stdout


def test_killing_it_leaves_no_process_behind() -> None:
    with subprocess.Popen(
        DEMO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=without_broker_settings()
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("sent "):
                break
        children = descendants(demo.pid)
        names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in children}
        assert {"beam.smp", "postgres"} <= names
        demo.kill()
    wait_for(lambda: not any(alive(pid) for pid in children))
