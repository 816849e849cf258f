"""Moments, written by whatever process sees them and read by the one that measures.

Three files in one folder: what was scheduled, what arrived, and what was then written down. A record is two doubles,
the moment and the moment that was due; appending sixteen bytes is one system call and safe from many processes.
Standard library only.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path

RECORD = struct.Struct("<dd")
SCHEDULED, ARRIVED, RECORDED = "scheduled", "arrived", "recorded"
FOLDER = "BENCH_MARKS"
"""The variable that tells a contender's process where to write."""


class Marker:
    """Writes moments."""

    def __init__(self, folder: str | None = None) -> None:
        base = Path(folder or os.environ[FOLDER])
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._scheduled = os.open(base / SCHEDULED, flags, 0o644)
        self._arrived = os.open(base / ARRIVED, flags, 0o644)
        self._recorded = os.open(base / RECORDED, flags, 0o644)

    def scheduled(self, count: int = 1) -> None:
        os.write(self._scheduled, RECORD.pack(time.time(), 0.0) * count)

    def arrived(self, due: float) -> None:
        os.write(self._arrived, RECORD.pack(time.time(), due))

    def recorded(self, count: int) -> None:
        os.write(self._recorded, RECORD.pack(time.time(), 0.0) * count)

    def arrivals(self, seen: Sequence[tuple[float, float]]) -> None:
        os.write(self._arrived, b"".join(RECORD.pack(at, due) for at, due in seen))


class Marks:
    """Reads them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def count(self, kind: str) -> int:
        try:
            return (self.folder / kind).stat().st_size // RECORD.size
        except FileNotFoundError:
            return 0

    def read(self, kind: str) -> list[tuple[float, float]]:
        """Oldest first, of all writers."""
        try:
            found = (self.folder / kind).read_bytes()
        except FileNotFoundError:
            return []
        return sorted(RECORD.iter_unpack(found[: len(found) // RECORD.size * RECORD.size]))
