"""`tarry demo`, as a person runs it and as a script does."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tarry.embedded.guardian import descendants
from tests.acceptance.up_command import TARRY, plain_environment
from tests.harness.processes import alive
from tests.harness.waiting import wait_for

DEMO = [*TARRY, "demo"]


def test_it_ends_with_the_balance_and_exit_code_0() -> None:
    done = subprocess.run(DEMO, capture_output=True, text=True, timeout=140, env=plain_environment(), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "balance: scheduled 42, returned 42, in review 10, lost 0" in done.stdout
    assert re.search(r"drift of 42 returns: p50 \d+ ms, p99 \d+ ms", done.stdout)
    assert re.search(r"Management UI, while this runs: http://127\.0\.0\.1:\d+", done.stdout)
    assert re.search(r"next invoice-\d+ for demo\.invoices at", done.stdout)
    assert "\x1b[" not in done.stdout


def test_killing_it_leaves_no_process_behind() -> None:
    with subprocess.Popen(
        DEMO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=plain_environment()
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
