"""PostgreSQL refuses to run as root; this finds it another user and makes its program reachable for that user."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tarry.errors import EmbeddedError

# Both exist already wherever they exist at all: no user is ever created for a throwaway database.
CANDIDATES = ("postgres", "nobody")


@dataclass(frozen=True)
class User:
    uid: int
    gid: int


def other_user(data: Path) -> User | None:
    """None means the present user will do. Kept data stays with the user who owns it."""
    if os.geteuid() != 0:
        return None
    owner = data.stat()
    if owner.st_uid != 0:
        return User(owner.st_uid, owner.st_gid)
    for name in CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return User(entry.pw_uid, entry.pw_gid)
    raise EmbeddedError(f"PostgreSQL does not run as root and there is no user {' or '.join(CANDIDATES)}: create one.")


def first_closed_folder(path: Path, user: User) -> Path | None:
    """The first folder on the way to `path` that the user may not pass through."""
    for folder in reversed(path.absolute().parents):
        about = folder.stat()
        bit = stat.S_IXUSR if about.st_uid == user.uid else stat.S_IXGRP if about.st_gid == user.gid else stat.S_IXOTH
        if not about.st_mode & bit:
            return folder
    return None


def must_reach(path: Path, user: User) -> None:
    if closed := first_closed_folder(path, user):
        raise EmbeddedError(
            f"PostgreSQL cannot run as root, and as another user it cannot reach {path}, because {closed} is closed "
            f"to others. Choose a folder outside of it, or allow passage with: chmod o+x {closed}"
        )


def reachable_copy(install: Path, user: User) -> Path:
    """The installation itself if it can be reached, else a copy: opening somebody's home to all is not ours to do.

    The copy keeps the places of the wheel's parts, because the programs look for their libraries beside its package.
    """
    if first_closed_folder(install / "bin", user) is None:
        return install
    about = (install / "bin" / "postgres").stat()
    copy = Path(tempfile.gettempdir()) / f"tarry-{install.name}-{about.st_size}-{about.st_mtime_ns}"
    package = install.parent
    if not copy.exists():
        fresh = Path(tempfile.mkdtemp(prefix=f"{copy.name}."))
        shutil.copytree(install, fresh / package.name / install.name)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, fresh / libraries.name)
        fresh.chmod(0o755)
        try:
            fresh.rename(copy)
        except OSError:  # another process was quicker; its copy is as good
            shutil.rmtree(fresh)
    if copy.stat().st_uid != os.geteuid():
        raise EmbeddedError(f"{copy} belongs to somebody else. Remove it, then try again.")
    return copy / package.name / install.name
