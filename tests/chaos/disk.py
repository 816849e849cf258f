"""A disk that can be filled: a small file system in memory, which only root may mount."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SIZE = "2g"
CHUNK = 1 << 20
NAME = "tarry-chaos-"


@dataclass(frozen=True)
class SmallDisk:
    """`folder` lies on it."""

    folder: Path

    @property
    def _hog(self) -> Path:
        return self.folder.parent / "hog"

    def fill(self) -> None:
        """To the last block."""
        with self._hog.open("ab", buffering=0) as file:
            for size in (CHUNK, 4096):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"\0" * size)

    def make_room(self) -> None:
        self._hog.unlink(missing_ok=True)


def remove_abandoned() -> None:
    """Of those who were killed before they could clear away: a mount bears the number of the process it is for."""
    mounts = Path("/proc/mounts")
    for line in mounts.read_text(encoding="utf-8").splitlines() if mounts.exists() else ():
        name, where, *_ = line.split()
        if name.startswith(NAME) and not Path(f"/proc/{name.removeprefix(NAME)}").exists():
            subprocess.run(["umount", "--lazy", where], check=False, capture_output=True)


@contextlib.contextmanager
def small_disk(where: Path) -> Iterator[SmallDisk | None]:
    """None where we may not mount."""
    where.mkdir()
    if os.geteuid() == 0:
        remove_abandoned()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=755", f"{NAME}{os.getpid()}", str(where)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        yield None
        return
    folder = where / "postgres"
    folder.mkdir(mode=0o755)
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)
