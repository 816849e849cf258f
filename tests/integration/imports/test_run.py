"""The import against a broker, without a router: what is in the request queue, and what is recorded."""

from __future__ import annotations

import os
import signal
import subprocess

import psycopg
import pytest

from tests.support.cli import TARRY, run_cli
from tests.support.installation import Installation
from tests.support.spaces import Database, Vhost
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series
ROWS = 300
TABLE = """
create table retry_queue as
select n as id, convert_to('row ' || n, 'UTF8') as original_payload, 'invoices' as original_queue,
       now() + interval '1 hour' as next_retry_at
  from generate_series(1, 300) as n
"""
COMMAND = ["import", "postgres", "--table", "retry_queue"]


def filled(dsn: str) -> dict[str, str]:
    """The environment for an import of a new table in this database."""
    with psycopg.connect(dsn) as connection:
        connection.execute(TABLE.encode())
    return {"TARRY_IMPORT_DSN": dsn}


def marked(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        if connection.execute("select to_regclass('tarry_imported')").fetchall() == [(None,)]:
            return 0
        ((found,),) = connection.execute("select count(*) from tarry_imported").fetchall()
        return int(found)


def test_import_that_is_terminated_says_what_is_done_and_goes_on(installation: Installation) -> None:
    settings = installation.environment | filled(installation.dsn)
    command = [*TARRY, *COMMAND, "--batch", "1"]
    with subprocess.Popen(
        command, env=os.environ | settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        wait_for(lambda: marked(installation.dsn) > 0, deadline=180, what="a row to be recorded")
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=120)
    done = marked(installation.dsn)
    if process.returncode == 0:  # it was faster than the signal
        assert done == ROWS
    else:
        assert process.returncode == 128 + signal.SIGTERM, said
        assert "Run the same command again for the rest" in said
    assert f"{done:,} of {ROWS:,} rows imported" in said
    assert run_cli(COMMAND, settings).exit_code == 0
    assert marked(installation.dsn) == ROWS
    assert ROWS <= installation.depth("retry.scheduled") <= ROWS + 1, "more than the last batch was sent twice"


def test_import_without_a_topology_records_nothing(vhost: Vhost, database: Database) -> None:
    settings = {"RABBITMQ_URL": vhost.amqp_url} | filled(database.dsn)
    done = run_cli(COMMAND, settings)
    assert (done.exit_code, "run `tarry topology apply` first" in done.output) == (1, True), done.output
    assert marked(database.dsn) == 0
