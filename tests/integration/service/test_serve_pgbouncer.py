"""`tarry serve` and the commands with pgbouncer before Postgres."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cli import run_process
from tests.support.installation import Installation
from tests.support.pooler import pooler
from tests.support.router import Router
from tests.support.spaces import Database
from tests.support.waiting import wait_for

Start = Callable[..., Router]
COMMANDS = [("status",), ("review", "list"), ("pause", "quick.orders"), ("audit", "verify"), ("audit", "migrate")]


def answer(installation: Installation, dsn: str, *arguments: str) -> tuple[int, str]:
    done = run_process(arguments, installation.environment | {"DATABASE_URL": dsn})
    return done.returncode, done.stdout + done.stderr


@pytest.mark.one_series
def test_serve_and_commands_refuse_a_pooler_without_sessions(
    installation: Installation, database: Database, start: Start, open_folder: Path
) -> None:
    with pooler(database, open_folder, "transaction") as dsn:
        router = start(DATABASE_URL=dsn)
        wait_for(lambda: router.process.poll() is not None, deadline=120, what="the router to refuse")
        assert (router.process.returncode, "pool_mode = session" in router.log.read_text()) == (1, True)
        assert "Traceback" not in router.log.read_text()
        for arguments in COMMANDS:
            code, said = answer(installation, dsn, *arguments)
            assert (code, "pool_mode = session" in said, "Traceback" in said) == (1, True, False), said


def test_serve_and_commands_work_through_a_pooler_with_sessions(
    installation: Installation, database: Database, start: Start, open_folder: Path
) -> None:
    with pooler(database, open_folder, "session") as dsn:
        router = start(DATABASE_URL=dsn).wait_ready()
        queue = installation.declare("quick.orders")
        for number in range(30):
            installation.request(queue, f"m{number}")
        assert len(set(installation.take_ids(queue, 30))) == 30
        wait_for(lambda: installation.transitions("returned") == 30, what="all returns in the audit")
        for arguments in COMMANDS:
            code, said = answer(installation, dsn, *arguments)
            assert code == 0, said
        router.stop()
