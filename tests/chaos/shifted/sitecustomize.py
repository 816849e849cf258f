"""On the path of a router whose clock shall be wrong: its wall clock is ahead by as many seconds as a file says."""

from __future__ import annotations

import os
import time
from pathlib import Path

_FILE = Path(os.environ["CHAOS_CLOCK_SHIFT"])
_true_ns = time.time_ns


def _shift_ns() -> int:
    return int(_FILE.read_text(encoding="utf-8") or "0") * 1_000_000_000


def _time_ns() -> int:
    return _true_ns() + _shift_ns()


time.time_ns = _time_ns
time.time = lambda: _time_ns() / 1e9
