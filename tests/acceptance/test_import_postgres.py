"""The waiting rows of S0's polling table, imported: every row comes back once, none early, at its due time.

TARRY_IMPORT_ROWS sets how many (10,000 in `make prove`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.acceptance.shipped import ShippedService, serving
from tests.support.cli import run_cli
from tests.support.spaces import Database, Vhost
from tests.support.waiting import wait_for

ROWS = int(os.environ.get("TARRY_IMPORT_ROWS", "200"))
SPREAD_S = max(6, ROWS // 300)
"""The rows come due over so many seconds, from a second ago on."""
GRANULE_MS = 125
SCHEMA = """
create schema billing;
create table billing.retry_queue (
    id               bigserial primary key,
    message_id       text not null,
    original_payload bytea not null,
    original_queue   text not null,
    error_reason     text,
    retry_count      integer not null default 0,
    max_retries      integer,
    next_retry_at    timestamptz not null,
    status           text not null default 'pending'
);
insert into billing.retry_queue (message_id, original_payload, original_queue, error_reason, retry_count, next_retry_at)
select 'inv-' || n, convert_to('invoice ' || n, 'UTF8'), 'invoices', 'database locked', n %% 3,
       clock_timestamp() + interval '1 second' * (%(spread)s * n / %(rows)s::float8 - 1)
  from generate_series(1, %(rows)s) as n;
insert into billing.retry_queue (message_id, original_payload, original_queue, next_retry_at, status)
values ('inv-done', 'done', 'invoices', now(), 'completed');
"""
COMMAND = ["import", "postgres", "--table", "billing.retry_queue", "--where", "status = 'pending'"]


class Due(NamedTuple):
    """What the table says about a row."""

    at_ms: float
    retry_count: int


@dataclass
class Table:
    """The source, in a database of its own kind: here that of the audit."""

    service: ShippedService
    dsn: str

    @property
    def environment(self) -> dict[str, str]:
        return self.service.environment | {"TARRY_IMPORT_DSN": self.dsn}

    def fill(self, rows: int, spread: float) -> dict[str, Due]:
        with psycopg.connect(self.dsn) as connection, psycopg.ClientCursor(connection) as cursor:
            cursor.execute(SCHEMA, {"rows": rows, "spread": spread})
        return self.waiting()

    def waiting(self) -> dict[str, Due]:
        found = self.all(
            "select message_id, extract(epoch from next_retry_at) * 1000, retry_count from billing.retry_queue "
            "where status = 'pending'"
        )
        return {message_id: Due(float(at), count) for message_id, at, count in found}

    def all(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(sql.encode()).fetchall()

    def marked(self) -> int:
        """0 as long as there is no table for the marks."""
        if self.all("select to_regclass('billing.tarry_imported')") == [(None,)]:
            return 0
        return int(self.all("select count(*) from billing.tarry_imported")[0][0])

    def run(self, *arguments: str, expected: int = 0) -> str:
        done = run_cli([*COMMAND, *arguments], self.environment)
        assert done.exit_code == expected, done.output
        return done.output


def collect(service: ShippedService, wanted: dict[str, Due], deadline: float) -> Counter[str]:
    """Takes returns until each row has come back, and checks each."""
    found: Counter[str] = Counter()

    def taken() -> bool:
        while (arrival := service._get("invoices")) is not None:
            service.ack(arrival)
            name = str(arrival.properties.message_id)
            due = wanted[name]
            assert arrival.at_ms >= due.at_ms, f"{name} is early by {due.at_ms - arrival.at_ms:.1f} ms"
            arrival.assert_on_time()
            assert arrival.due_ms >= due.at_ms
            assert arrival.body == f"invoice {name.removeprefix('inv-')}".encode()
            assert arrival.headers["retry_count"] == due.retry_count + 1
            assert not [header for header in arrival.headers if header.startswith("tarry-import")]
            found[name] += 1
        return len(found) == len(wanted)

    wait_for(taken, deadline=deadline, what=f"all of {len(wanted)} rows to come back")
    return found


def due_drifts(service: ShippedService, wanted: dict[str, Due]) -> list[float]:
    """How much later than in the table each row that was not overdue was scheduled, in milliseconds."""
    sql = (
        "select message_id, (detail ->> 'due_ms')::bigint, extract(epoch from at) * 1000 from transition "
        "join retry on retry.id = retry_id where transition.state = 'scheduled'"
    )
    rows = service.installation.rows(sql)
    return [due - wanted[name].at_ms for name, due, at in rows if wanted[name].at_ms > at + GRANULE_MS]


def duplicates(service: ShippedService) -> int:
    return service.installation.transitions("duplicate")


def test_import_returns_every_row_once_and_none_early(vhost: Vhost, database: Database, tmp_path: Path) -> None:
    with serving(vhost, database, tmp_path) as service:
        service.queue("invoices")
        table = Table(service, database.dsn)
        wanted = table.fill(ROWS, SPREAD_S)
        content = table.all("select * from billing.retry_queue order by id")

        began = time.monotonic()
        assert f"{ROWS:,} of {ROWS:,} rows imported" in table.run()
        took = time.monotonic() - began
        found = collect(service, wanted, deadline=SPREAD_S + 120)
        assert "0 of 0 rows imported" in table.run()
        assert_no_more(service)

        assert (len(found), max(found.values())) == (ROWS, 1)
        drifts = due_drifts(service, wanted)
        assert all(0 <= drift <= GRANULE_MS + 1 for drift in drifts), (min(drifts), max(drifts))
        assert table.all("select * from billing.retry_queue order by id") == content
        late = sorted(arrival.at_ms - wanted[str(arrival.properties.message_id)].at_ms for arrival in service.seen)
        print(  # noqa: T201 - the figures of `make prove`
            f"\n{ROWS:,} rows imported in {took:.1f} s, each returned once; {len(drifts):,} were not overdue and were "
            f"scheduled {max(drifts, default=0):.0f} ms after the due time at most; returns after the due time in the "
            f"table: first {late[0]:.1f} ms, median {late[len(late) // 2]:.0f} ms, last {late[-1]:.0f} ms"
        )


def test_import_killed_at_any_point_repeats_nothing(vhost: Vhost, database: Database, tmp_path: Path) -> None:
    with serving(vhost, database, tmp_path) as service:
        service.queue("invoices")
        table = Table(service, database.dsn)
        wanted = table.fill(ROWS, SPREAD_S)
        command = [sys.executable, "-m", "tarry", *COMMAND, "--batch", "10"]
        with subprocess.Popen(command, env=os.environ | table.environment, stdout=subprocess.DEVNULL) as process:
            wait_for(lambda: table.marked() > 0, deadline=180, what="a batch to be recorded")
            process.kill()
        before = table.marked()
        # As if it had been killed after the confirm and before the record: the last batch counts as not imported.
        table.all(
            "with gone as (delete from billing.tarry_imported where imported_at = "
            "(select max(imported_at) from billing.tarry_imported) returning 1) select count(*) from gone"
        )
        assert table.marked() < before
        table.run()
        found = collect(service, wanted, deadline=SPREAD_S + 120)
        wait_for(lambda: duplicates(service) > 0, what="the requests that were sent twice to be recognised")
        assert_no_more(service)
        assert (len(found), max(found.values()), table.marked()) == (ROWS, 1, ROWS)


def assert_no_more(service: ShippedService) -> None:
    """Nothing is on its way: no request, no retry that waits, no message in the queue."""
    open_ = "select count(*) from retry where state not in ('returned', 'succeeded')"
    wait_for(lambda: service.depth("retry.scheduled") == 0, what="the requests to be handled")
    wait_for(lambda: service.installation.number(open_) == 0, what="every retry to be recorded as returned")
    assert service.depth("invoices") == 0
    assert service.depth("manual-review.pending") == 0


@pytest.mark.one_series
def test_import_names_what_it_leaves_and_keeps_a_far_due_time(vhost: Vhost, database: Database, tmp_path: Path) -> None:
    with serving(vhost, database, tmp_path) as service:
        service.queue("invoices")
        table = Table(service, database.dsn)
        table.fill(20, 1)
        table.all("update billing.retry_queue set original_queue = '' where message_id = 'inv-7' returning 1")
        far = "update billing.retry_queue set next_retry_at = now() + interval '30 days' where message_id = 'inv-8'"
        table.all(f"{far} returning 1")

        plan = table.run("--dry-run")
        assert "20 rows would be imported; nothing was changed" in plan
        assert (table.marked(), service.depth("retry.scheduled")) == (0, 0)
        said = table.run(expected=1)
        assert "19 of 20 rows imported" in said
        assert "the row 7 was not imported: it has no queue" in said
        table.all("update billing.retry_queue set original_queue = 'invoices' where message_id = 'inv-7' returning 1")
        assert "1 of 1 rows imported" in table.run()

        wanted = table.waiting()
        at_ms = wanted.pop("inv-8").at_ms
        assert len(collect(service, wanted, deadline=60)) == 19
        due = "select extract(epoch from due_at) * 1000 from retry where message_id = 'inv-8'"
        ((due_ms,),) = service.installation.rows(due)
        assert 0 <= float(due_ms) - at_ms <= GRANULE_MS + 1
