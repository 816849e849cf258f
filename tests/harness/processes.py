"""Looking at processes by their pid, never by their name: other people's are none of our business."""

from __future__ import annotations

import subprocess


def state_of(pid: int) -> str | None:
    """R, S, D, T, Z, ... as `ps` has it; None when there is no such process."""
    said = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return said.strip()[:1] or None


def alive(pid: int) -> bool:
    """A zombie is not alive; it only waits to be counted."""
    return state_of(pid) not in {None, "Z"}
