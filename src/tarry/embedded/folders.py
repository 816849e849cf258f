"""Folders for the files of a private service, and the cache folder for brokers built for this machine."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from tarry.errors import EmbeddedError


def cache_folder() -> Path:
    if chosen := os.environ.get("TARRY_CACHE"):
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "tarry"


class Folder:
    """One service's folder: given and kept, or temporary and deleted. Locked, so that two services never share it."""

    def __init__(self, kind: str, given: Path | str | None = None) -> None:
        self.throwaway = given is None
        self.path = Path(tempfile.mkdtemp(prefix=f"tarry-{kind}-")) if given is None else Path(given).absolute()
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self.lock)
            raise EmbeddedError(
                f"{self.path} is in use by another private {kind}. Stop that one first, or choose another folder."
            ) from None

    @property
    def to_remove(self) -> list[Path]:
        return [self.path] if self.throwaway else []

    def close(self) -> None:
        """Releases the lock. A guardian that inherited it keeps it until its service has ended."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1
            if self.throwaway:
                shutil.rmtree(self.path, ignore_errors=True)


def tail(path: Path, lines: int = 40) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
