"""A pgbouncer for one test, in front of the run's PostgreSQL."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg

from tarry.embedded import ports
from tarry.embedded.guarded import Guarded, GuardedProgram
from tarry.embedded.package import MANAGERS, install_debian_package
from tarry.embedded.postgresql import other_user
from tarry.errors import EmbeddedError
from tests.support.spaces import Database
from tests.support.waiting import wait_for
from tests.support.wanted import missing

CONFIG = """
[databases]
* = host={host} port={server} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
max_client_conn = 300
default_pool_size = 60
{more}
"""


LOCK = Path(tempfile.gettempdir()) / "tarry-tests-pgbouncer.lock"
"""One worker installs it, the others wait."""


def program() -> str:
    """It is installed where it is missing and may be; its service is not started."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return _found() or _installed()
        except (EmbeddedError, OSError) as problem:
            missing(f"pgbouncer cannot be had: {problem}", "pgbouncer")


def _found() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")


def _installed() -> str:
    if not (MANAGERS[0].present and MANAGERS[0].allowed):
        raise EmbeddedError("it is not installed, and it cannot be installed with apt-get here")
    install_debian_package("pgbouncer")
    return _found() or "pgbouncer"


@contextlib.contextmanager
def pooler(database: Database, folder: Path, mode: str, *more: str) -> Iterator[str]:
    """The DSN by way of a pgbouncer in that mode."""
    host, server = database.address
    port = ports.free(1)[0]
    user = other_user(folder)
    config, log = folder / f"{port}.ini", folder / f"{port}.log"
    text = CONFIG.format(host=host, server=server, port=port, mode=mode, more="\n".join(more))
    config.write_text(text, encoding="utf-8")
    guarded = Guarded()
    try:
        guarded.start(
            GuardedProgram(
                argv=[program(), str(config)],
                env={"PATH": os.defpath},
                cwd="/",
                log=str(log),
                uid=user.uid if user else None,
                gid=user.gid if user else None,
                stop_signal=signal.SIGINT,
            )
        )
        wait_for(lambda: _answers(database.through(port)), deadline=60, what="pgbouncer to answer")
        yield database.through(port)
    finally:
        guarded.close()


def _answers(dsn: str) -> bool:
    with contextlib.suppress(psycopg.OperationalError):
        psycopg.connect(dsn, connect_timeout=5).close()
        return True
    return False
