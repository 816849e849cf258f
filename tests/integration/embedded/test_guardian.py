from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import pytest

from tarry.embedded.guarded import Guarded, GuardedProgram
from tarry.errors import EmbeddedError
from tests.support.processes import alive, state_of
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Leaves a grandchild in a session of its own, says who it is, and will not hear of SIGTERM.
STUBBORN = """
trap '' TERM
setsid sleep 1000 &
echo $! > grandchild
wait
"""


def service(folder: Path, script: str, *, grace: float = 5.0) -> GuardedProgram:
    environment = {"PATH": os.environ["PATH"]}
    log = str(folder / "log")
    return GuardedProgram(argv=["/bin/sh", "-c", script], env=environment, cwd=str(folder), log=log, grace=grace)


def grandchild(folder: Path) -> int:
    file = folder / "grandchild"
    wait_for(lambda: file.exists() and file.read_text().strip(), what="the grandchild to start")
    return int(file.read_text())


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with contextlib.closing(Guarded()) as it:
        yield it


def test_a_service_that_ends_by_itself_is_noticed(guarded: Guarded, tmp_path: Path) -> None:
    guarded.start(service(tmp_path, "echo said; exit 7"))
    wait_for(lambda: not guarded.running, what="the service to end")
    assert guarded.exit_code == 7
    assert (tmp_path / "log").read_text() == "said\n"


def test_a_program_that_is_not_there_is_told_in_the_log(guarded: Guarded, tmp_path: Path) -> None:
    wrong = GuardedProgram(argv=["/no/such/program"], env={}, cwd="/", log=str(tmp_path / "log"))
    guarded.start(wrong)
    wait_for(lambda: not guarded.running, what="the service to fail")
    assert guarded.exit_code == 127
    assert "/no/such/program" in (tmp_path / "log").read_text()


def test_a_program_that_ends_at_once_counts_as_started(tmp_path: Path) -> None:
    class SlowReader(Guarded):
        """Reads both events at once: that the program has started, and that it has ended."""

        def _hear(self, seconds: float) -> bool:
            time.sleep(0.5 if self.exit_code is None else 0)
            return super()._hear(seconds)

    with contextlib.closing(SlowReader()) as guarded:
        assert guarded.start(service(tmp_path, "exit 3")) > 0
        assert (guarded.running, guarded.exit_code) == (False, 3)


def test_it_can_be_started_again_and_only_once_at_a_time(guarded: Guarded, tmp_path: Path) -> None:
    first = guarded.start(service(tmp_path, "exec sleep 1000"))
    with pytest.raises(EmbeddedError, match="already running"):
        guarded.start(service(tmp_path, "exec sleep 1000"))
    guarded.stop()
    assert (alive(first), guarded.exit_code) == (False, -signal.SIGTERM)
    second = guarded.start(service(tmp_path, "exec sleep 1000"))
    assert alive(second)


def test_one_that_ignores_the_polite_signal_is_killed_with_all_it_started(guarded: Guarded, tmp_path: Path) -> None:
    pid = guarded.start(service(tmp_path, STUBBORN, grace=0.2))
    left = grandchild(tmp_path)
    guarded.stop()
    assert (alive(pid), alive(left)) == (False, False)


def test_a_kill_takes_what_the_service_started_too(guarded: Guarded, tmp_path: Path) -> None:
    pid = guarded.start(service(tmp_path, STUBBORN))
    left = grandchild(tmp_path)
    guarded.kill()
    assert (alive(pid), alive(left), guarded.exit_code) == (False, False, -signal.SIGKILL)


def test_a_paused_service_can_go_on_or_be_stopped(guarded: Guarded, tmp_path: Path) -> None:
    pid = guarded.start(service(tmp_path, "exec sleep 1000"))
    guarded.pause()
    wait_for(lambda: state_of(pid) == "T", what="the service to be paused")
    guarded.unpause()
    wait_for(lambda: state_of(pid) == "S", what="the service to go on")
    guarded.pause()
    guarded.stop()
    assert not alive(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_guardian_told_to_go_takes_its_service_along(guarded: Guarded, tmp_path: Path, number: int) -> None:
    pid = guarded.start(service(tmp_path, "exec sleep 1000"))
    os.kill(guarded.guardian_pid, number)
    wait_for(lambda: not alive(pid), what="the service to end")
    wait_for(lambda: not guarded.running, what="the owner to notice")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_a_killed_guardian_takes_its_service_along(guarded: Guarded, tmp_path: Path) -> None:
    pid = guarded.start(service(tmp_path, "exec sleep 1000"))
    os.kill(guarded.guardian_pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid), what="the service to end")
    wait_for(lambda: not guarded.running, what="the owner to notice")
    with pytest.raises(EmbeddedError, match="guardian process has ended"):
        guarded.start(service(tmp_path, "exec sleep 1000"))


def test_a_killed_owner_leaves_neither_service_nor_guardian_nor_folder(tmp_path: Path) -> None:
    folder = tmp_path / "throwaway"
    folder.mkdir()
    owner = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from tarry.embedded.guarded import Guarded, GuardedProgram
        guarded = Guarded(throwaway=[Path({str(folder)!r})])
        script = {STUBBORN!r}
        pid = guarded.start(GuardedProgram(argv=["/bin/sh", "-c", script], env={{"PATH": {os.environ["PATH"]!r}}},
                                    cwd={str(folder)!r}, log={str(folder / "log")!r}))
        print(pid, guarded.guardian_pid, flush=True)
        sys.stdin.read()
    """)
    with subprocess.Popen(
        [sys.executable, "-c", owner], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pids = [*map(int, process.stdout.readline().split()), grandchild(folder)]
        assert all(map(alive, pids))
        process.kill()
    wait_for(lambda: not any(map(alive, pids)), what=f"the processes {pids} to end")
    wait_for(lambda: not folder.exists(), what="the folder to be removed")
