"""A look at the books is made every minute, with however much waiting: it must not read the messages that wait.

The row of a retry holds its message, so a query that goes through the table reads all of them. How long that takes is
no matter for a test; how many pages it reads is.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tarry.audit.queries import query
from tests.integration.audit.books import Books, id_of, request

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
    "in_hold",
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
    "actor": "test",
    "limit": 1_000,
    "tiers": [TIER],
    "ttls": [1_800_000],
}


@pytest.fixture
def crowded(books: Books) -> Books:
    """So many wait, each with its message, and nothing is due."""
    books.claim(request("one"))
    books.schedule(id_of("one"), 1, due_in_ms=1_800_000, tier=TIER, body=bytes(1_000), properties=bytes(200))
    books.sql.execute(
        "insert into retry (id, queue, state, round, tier, delay_ms, entered_at, due_at, expected_at, body, properties)"
        " select gen_random_uuid(), queue, state, round, tier, delay_ms, entered_at, due_at, expected_at, body,"
        " properties from retry, generate_series(2, %s)",
        [WAITING],
    )
    books.sql.execute("vacuum analyze retry")
    return books


def pages_read(books: Books, name: str) -> int:
    plan = books.sql.execute(b"explain (analyze, buffers, format json) " + query(name), PARAMETERS).fetchone()
    assert plan is not None
    whole: dict[str, Any] = plan[0][0]["Plan"]
    return int(whole["Shared Hit Blocks"]) + int(whole["Shared Read Blocks"])


def test_a_look_reads_no_message_that_waits(crowded: Books) -> None:
    table = crowded.sql.execute("select relpages from pg_class where oid = 'retry'::regclass").fetchone()
    assert table is not None
    greedy = {name: pages for name in LOOK if (pages := pages_read(crowded, name)) > table[0] / 5}
    assert not greedy, f"of {table[0]} pages"
