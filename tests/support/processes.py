"""The state of processes, by pid and never by name."""

from __future__ import annotations

import subprocess


def state_of(pid: int) -> str | None:
    """R, S, D, T, Z, ... as `ps` has it; None when there is no such process."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return shown.strip()[:1] or None


def alive(pid: int) -> bool:
    """A zombie does not count as alive."""
    return state_of(pid) not in {None, "Z"}
