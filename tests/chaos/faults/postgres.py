"""What can happen to Postgres. Retries must not wait for it, and the audit must be complete in the end."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tarry.embedded.postgresql import find_install
from tests.chaos.faults.destinations import recover
from tests.chaos.faults.fault import Fault
from tests.chaos.judge import Allowance
from tests.chaos.load.plan import MAX_RETRIES
from tests.chaos.scene import Scene, wait
from tests.chaos.stage import Stage
from tests.support.waiting import wait_for

RESTORED = (
    "`audit recover` sends again what the backup has as waiting and the broker has released since; each of those goes "
    "the rest of its way again: three rounds and the review at most; and what is later than its grace"
)
WAITING = "select count(*), pg_export_snapshot() from retry where state in ('claimed', 'scheduled')"
OVERDUE = 7.0
"""Seconds after which all that waited at the moment of the backup is overdue."""


@dataclass
class PostgresKilled(Fault):
    """In the middle of its transactions."""

    name = "postgres-killed"
    title = "Postgres killed with -9 and started again"
    times = 3
    lasts = 3.0
    lasts_short = 0.5

    def inject(self, scene: Scene) -> None:
        scene.stage.postgres.kill()

    def endure(self, scene: Scene) -> None:
        feel(scene)
        super().endure(scene)

    def heal(self, scene: Scene) -> None:
        scene.stage.postgres.start()
        scene.running[0].wait_ready()


@dataclass
class PostgresRestarted(PostgresKilled):
    """In good order."""

    name = "postgres-restarted"
    title = "Postgres stopped and started again"
    times = 1
    lasts = 8.0

    def inject(self, scene: Scene) -> None:
        scene.stage.postgres.stop()


@dataclass
class PostgresSlow(Fault):
    """It answers, and each answer takes so long that one router cannot wait for all of them."""

    name = "postgres-slow"
    title = "Postgres slow: two seconds for each statement"
    lasts = 15.0
    lasts_short = 5.0

    def prepare(self, scene: Scene) -> None:
        scene.wire("postgres")

    def inject(self, scene: Scene) -> None:
        scene.wire("postgres").delay(1.0)

    def heal(self, scene: Scene) -> None:
        scene.wire("postgres").heal()
        scene.running[0].wait_ready()


@dataclass
class PostgresFull(Fault):
    """Not a byte is left on its disk."""

    name = "postgres-full"
    title = "Postgres's disk full"
    lasts = 10.0
    lasts_short = 3.0

    def obstacle(self, stage: Stage) -> str | None:
        return None if stage.disk else "only root may mount a small disk to fill"

    def inject(self, scene: Scene) -> None:
        if scene.stage.disk is None:
            raise AssertionError
        scene.stage.disk.fill()

    def endure(self, scene: Scene) -> None:
        feel(scene)
        super().endure(scene)

    def heal(self, scene: Scene) -> None:
        """A Postgres that has no room for its log ends itself, and somebody starts it again."""
        if scene.stage.disk is None:
            raise AssertionError
        scene.stage.disk.make_room()
        if scene.stage.postgres.pid is None:
            scene.stage.postgres.start()
        scene.running[0].wait_ready(180)


@dataclass
class PostgresSetBack(Fault):
    """A restore: what happened since the backup is on the broker, and no longer in the store."""

    name = "postgres-set-back"
    title = "Postgres restored from an older backup"
    lasts = 4.0
    lasts_short = 1.0

    def inject(self, scene: Scene) -> None:
        """A backup, and how many wait in it: counted in the very snapshot that is dumped."""
        self._backup = scene.folder / "backup"
        with psycopg.connect(scene.dsn) as connection:
            connection.execute("set transaction isolation level repeatable read")
            waiting, snapshot = connection.execute(WAITING).fetchone() or (0, "")
            _run("pg_dump", "--format=custom", f"--snapshot={snapshot}", f"--file={self._backup}", scene.dsn)
        self._waiting = int(waiting)

    def heal(self, scene: Scene) -> None:
        with psycopg.connect(scene.stage.postgres.dsn(), autocommit=True) as connection:
            connection.execute(f"drop database {scene.database} with (force)")
            wait(0.5)
            connection.execute(f"create database {scene.database}")
        _run("pg_restore", f"--dbname={scene.dsn}", str(self._backup))
        scene.running[0].wait_ready(180)
        wait(OVERDUE)
        self._sent = int(recover(scene)["sent"])

    def allowance(self) -> Allowance:
        late = max(0, self._sent - self._waiting)
        return Allowance(self._waiting * (MAX_RETRIES + 1) + late, RESTORED, audit=False)


def feel(scene: Scene) -> None:
    """Until the router has noticed: a fault that nobody feels proves nothing."""
    wait_for(lambda: scene.running[0].ready()[1], deadline=180, what="the router to notice that Postgres is away")


def _run(program: str, *arguments: str) -> None:
    done = subprocess.run([_programs() / program, *arguments], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{program}: {done.stderr}")


def _programs() -> Path:
    return find_install() / "bin"
