"""The parent of several processes, with small programs in place of routers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tarry.service import processes
from tarry.service.processes import Command, Processes, pass_on
from tests.support.waiting import wait_for

READS_PARENT = "import os, signal, sys, time; fd = int(sys.argv[-1].partition(':')[2])\n"
READY = READS_PARENT + "os.write(fd, b'R')\n"
RUNS = "signal.pause()\n"
IGNORES = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ignores', file=sys.stderr, flush=True)\n"


def commands(*programs: str) -> list[Command]:
    return [
        Command(number, ("-c", program), os.environ | {"NUMBER": str(number)})
        for number, program in enumerate(programs, 1)
    ]


class Log:
    """Collects what the processes write, and waits for it."""

    def __init__(self) -> None:
        self.text = ""
        self._more = asyncio.Event()

    def write(self, lines: bytes) -> None:
        assert lines.endswith(b"\n")
        self.text += lines.decode()
        self._more.set()

    async def wait(self, pattern: str, times: int = 1) -> list[str]:
        async with asyncio.timeout(60):
            while len(found := re.findall(pattern, self.text)) < times:
                self._more.clear()
                await self._more.wait()
        return found


def run_until(
    programs: Sequence[str], pattern: str, times: int = 1, last_seconds: float = 60.0
) -> tuple[int, list[str]]:
    """Stops them when their log matches so often; the exit code, and the matches."""

    async def run() -> tuple[int, list[str]]:
        log = Log()
        parent = Processes(commands(*programs), log.write, first_pause=0.01, last_seconds=last_seconds)
        running = asyncio.create_task(parent.run())
        found = await log.wait(pattern, times)
        os.kill(os.getpid(), signal.SIGTERM)
        return await asyncio.wait_for(running, 60), found

    return asyncio.run(run())


def run_to_the_end(*programs: str) -> int:
    async def run() -> int:
        return await asyncio.wait_for(Processes(commands(*programs), Log().write, first_pause=0.01).run(), 60)

    return asyncio.run(run())


def test_processes_run_side_by_side_and_sigterm_reaches_all() -> None:
    says = "print('pid', os.getpid(), file=sys.stderr, flush=True)\n"
    code, found = run_until([READY + says + RUNS] * 3, r"pid (\d+)", times=3)
    assert code == 0
    assert len(set(found)) == 3
    for pid in found:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_processes_start_one_again_that_was_ready_and_failed() -> None:
    dies = "print('number', os.environ['NUMBER'], file=sys.stderr, flush=True)\n"
    with capture_logs() as logged:
        code, _ = run_until([READY + dies + "sys.exit(3)", READY + RUNS], "number 1", times=3)
    ends = [one for one in logged if one["event"] == processes.PROCESS_ENDED]
    assert code == 0
    assert {one["process"] for one in ends} == {1}
    assert {one["exit_code"] for one in ends} == {3}
    assert [one["pause"] for one in ends[:2]] == [0.01, 0.02]


def test_processes_start_one_again_that_was_killed_before_it_was_ready() -> None:
    dies = "print('begins', file=sys.stderr, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    with capture_logs() as logged:
        code, _ = run_until([READS_PARENT + dies], "begins", times=2)
    assert code == 0
    assert {one["signal"] for one in logged if one["event"] == processes.PROCESS_ENDED} == {"SIGKILL"}


def test_processes_end_all_with_the_code_of_one_that_cannot_start() -> None:
    with capture_logs() as logged:
        assert run_to_the_end(READY + RUNS, "import sys; sys.exit(7)") == 7
    assert [one["process"] for one in logged if one["event"] == processes.CANNOT_START] == [2]


def test_processes_kill_one_that_does_not_stop() -> None:
    with capture_logs() as logged:
        code, _ = run_until([READY + IGNORES + "time.sleep(600)"], "ignores", last_seconds=0.2)
    assert code == processes.KILLED
    assert [one["process"] for one in logged if one["event"] == processes.NOT_ENDED] == [1]


@pytest.mark.parametrize("is_ready", [True, False])
def test_processes_stop_when_their_parent_is_gone(tmp_path: Path, *, is_ready: bool) -> None:
    """The parent here is a process of its own, which is killed. What its child writes to the log goes nowhere then."""
    told = tmp_path / "told"
    child = f"""
import asyncio, os, pathlib, sys, uvloop
from tarry.service.processes import Parent
async def main():
    stop, parent = asyncio.Event(), Parent.parse(sys.argv[-1])
    parent.watch(stop)
    if {is_ready}:
        parent.tell_ready()
    print("runs", file=sys.stderr, flush=True)
    await stop.wait()
    print("ends", file=sys.stderr, flush=True)
    pathlib.Path({str(told)!r}).touch()
uvloop.run(main())
"""
    parent = f"""
import asyncio, os, signal
from tarry.service.processes import Command, Processes
def write(lines):
    if b"runs" in lines:
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(Processes([Command(1, ("-c", {child!r}), dict(os.environ))], write).run())
"""
    ended = subprocess.run([sys.executable, "-c", parent], check=False, timeout=60, stderr=subprocess.DEVNULL)
    assert ended.returncode == -signal.SIGKILL
    wait_for(told.exists, deadline=60, what="the child to stop")


def test_pass_on_writes_whole_lines() -> None:
    written: list[bytes] = []

    async def run() -> None:
        stream = asyncio.StreamReader()
        passing = asyncio.create_task(pass_on(stream, written.append))
        for part in (b"one\ntw", b"o\nthr", b"ee"):
            stream.feed_data(part)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        stream.feed_eof()
        await passing

    asyncio.run(run())
    assert written == [b"one\n", b"two\n", b"three\n"]
