"""Keeps the data of the run's services in memory, because declaring queues on disk takes more than half of the time.

A killed process loses nothing: what it wrote stays in the file system.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

PLACE = Path("/dev/shm")  # noqa: S108  made unique below
PREFIX = "tarry-tests-"
ENOUGH = 4 * 2**30
"""Bytes. A container may have 64 MiB there; several brokers with their logs need more."""


def folder(place: Path = PLACE, enough: int = ENOUGH) -> Path | None:
    """A new folder; None if there is too little memory or if TMPDIR is set."""
    if "TMPDIR" in os.environ or not os.access(place, os.W_OK):
        return None
    remove_abandoned(place)
    if shutil.disk_usage(place).free < enough:
        return None
    made = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))
    made.chmod(0o755)  # if we are root, Postgres runs as another user
    return made


def remove_abandoned(place: Path) -> None:
    """Removes the folders of runs that were killed."""
    for left in place.glob(f"{PREFIX}*"):
        owner = left.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(left, ignore_errors=True)


def settings(made: Path) -> Mapping[str, str]:
    """For this process and those that it starts. pytest's own folders stay in the usual place."""
    return {"TMPDIR": str(made), "PYTEST_DEBUG_TEMPROOT": tempfile.gettempdir()}
