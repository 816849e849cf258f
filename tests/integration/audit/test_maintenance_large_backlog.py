"""An audit pass is made every minute, however much is waiting: it must not read the messages that wait.

The row of a retry contains its message, so a query that scans the table reads all of them. The test counts the pages
that are read, because the time that takes depends on the machine.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tarry.store.database import query
from tests.support.audit_store import AuditStore, id_of, request

WAITING = 5_000
LOOK = (
    "counts",
    "open_by_tier",
    "in_first_wait",
    "not_overdue_by_tier",
    "overdue_rows",
    "overdue_by_tier",
    "stale_claims",
    "passed",
    "tap_seen",
    "returned_lately",
    "note_overdue",
    "presume_success",
    "prune_payloads",
    "prune_retries",
    "in_held_queues",
)
TIER = "retry.delay.30m"
PARAMETERS: dict[str, object] = {
    "grace": timedelta(seconds=30),
    "settle": timedelta(seconds=2),
    "quiet": timedelta(minutes=15),
    "lately": timedelta(minutes=1),
    "lease": timedelta(seconds=60),
    "older_than": timedelta(days=30),
    "ago": timedelta(),
    "unread": 0,
    "actor": "test",
    "limit": 1_000,
    "tiers": [TIER],
    "ttls": [1_800_000],
    "gates": ["~auto"],
}


@pytest.fixture
def crowded(store: AuditStore) -> AuditStore:
    """So many wait, each with its message, and nothing is due."""
    store.claim(request("one"))
    store.schedule(id_of("one"), 1, due_in_ms=1_800_000, tier=TIER, body=bytes(1_000), properties=bytes(200))
    store.sql.execute(
        "insert into retry (id, queue, state, round, tier, delay_ms, entered_at, due_at, expected_at, body, properties)"
        " select gen_random_uuid(), queue, state, round, tier, delay_ms, entered_at, due_at, expected_at, body,"
        " properties from retry, generate_series(2, %s)",
        [WAITING],
    )
    store.sql.execute("vacuum analyze retry")
    return store


def pages_read(store: AuditStore, name: str) -> int:
    plan = store.sql.execute(b"explain (analyze, buffers, format json) " + query(name), PARAMETERS).fetchone()
    assert plan is not None
    whole: dict[str, Any] = plan[0][0]["Plan"]
    return int(whole["Shared Hit Blocks"]) + int(whole["Shared Read Blocks"])


def test_an_audit_pass_reads_no_message_that_waits(crowded: AuditStore) -> None:
    table = crowded.sql.execute("select relpages from pg_class where oid = 'retry'::regclass").fetchone()
    assert table is not None
    greedy = {name: pages for name in LOOK if (pages := pages_read(crowded, name)) > table[0] / 5}
    assert not greedy, f"of {table[0]} pages"
