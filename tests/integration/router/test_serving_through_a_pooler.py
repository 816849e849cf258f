"""`tarry serve` and the commands with pgbouncer before Postgres."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.pooler import pooler
from tests.harness.spaces import Database
from tests.harness.waiting import wait_for
from tests.integration.router.serving import Place, Router

Start = Callable[..., Router]
COMMANDS = [("status",), ("review", "list"), ("pause", "quick.orders"), ("audit", "verify"), ("audit", "migrate")]


def answer(place: Place, dsn: str, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tarry", *arguments],
        env=os.environ | place.environment | {"DATABASE_URL": dsn},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.one_series
def test_serve_and_commands_refuse_a_pooler_without_sessions(
    place: Place, database: Database, start: Start, open_folder: Path
) -> None:
    with pooler(database, open_folder, "transaction") as dsn:
        router = start(DATABASE_URL=dsn)
        wait_for(lambda: router.process.poll() is not None, deadline=120, what="the router to refuse")
        assert (router.process.returncode, "pool_mode = session" in router.log.read_text()) == (1, True)
        assert "Traceback" not in router.log.read_text()
        for arguments in COMMANDS:
            code, said = answer(place, dsn, *arguments)
            assert (code, "pool_mode = session" in said, "Traceback" in said) == (1, True, False), said


def test_serve_and_commands_work_through_a_pooler_with_sessions(
    place: Place, database: Database, start: Start, open_folder: Path
) -> None:
    with pooler(database, open_folder, "session") as dsn:
        router = start(DATABASE_URL=dsn).wait_ready()
        queue = place.origin("quick.orders")
        for number in range(30):
            place.request(queue, f"m{number}")
        assert len(set(place.take(queue, 30))) == 30
        wait_for(lambda: place.transitions("returned") == 30, what="all returns in the audit")
        for arguments in COMMANDS:
            code, said = answer(place, dsn, *arguments)
            assert code == 0, said
        router.stop()
