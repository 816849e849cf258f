"""What processes cost, from /proc: processor seconds with all their children, and resident memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def family(roots: Iterable[int]) -> set[int]:
    """These processes and everything they started."""
    parents = {pid: stat[1] for pid in _pids() if (stat := _stat(pid)) is not None}
    found = set(roots)
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if int(parent) in found} - found
        found |= more
        grown = bool(more)
    return found


def cpu_seconds(roots: Iterable[int]) -> float:
    """Own time, and that of children that have ended and were waited for."""
    ticks = 0
    for pid in family(roots):
        stat = _stat(pid)
        if stat is not None:
            ticks += sum(map(int, stat[11:15]))
    return ticks / TICKS


def resident_mib(roots: Iterable[int]) -> float:
    pages = 0
    for pid in family(roots):
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
    return pages * PAGE / 2**20


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _stat(pid: int) -> list[str] | None:
    """The fields after the name, which may contain blanks and parentheses."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
