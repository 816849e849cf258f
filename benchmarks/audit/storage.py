"""The store alone, without a broker: how fast all steps of a retry are written, and how many bytes they take."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

import psycopg

from tarry.core.states import State
from tarry.store.claims import Store
from tarry.store.database import open_session
from tarry.store.rows import Claim, Record, Return

BATCH = 500
BODY, PROPERTIES = bytes(512), bytes(600)


@dataclass(frozen=True)
class Cost:
    """For one retry of one round, with 512 bytes of body and 600 of properties."""

    retries: int
    seconds: dict[str, float]
    retry_bytes: int
    """The current row, its share of the indexes included."""
    history_bytes: int
    """Its four transitions and their index."""
    wal_bytes: int

    def report(self) -> dict[str, object]:
        return {
            "rows_per_s": {step: round(self.retries / taken) for step, taken in self.seconds.items()},
            "retries_per_s": round(self.retries / sum(self.seconds.values())),
            "bytes_per_retry": {"row": self.retry_bytes, "history": self.history_bytes, "wal": self.wal_bytes},
        }


async def cost(dsn: str, count: int) -> Cost:
    store = Store(dsn, "benchmark")
    await store.open()
    seconds = dict.fromkeys(("claim", "record", "returned", "presumed"), 0.0)
    with psycopg.connect(dsn, autocommit=True) as sql:
        before = _number(sql, "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")
        for _ in range(0, count, BATCH):
            ids = [str(uuid.uuid4()) for _ in range(BATCH)]
            await _life(store, ids, seconds)
        started = time.perf_counter()
        async with open_session(dsn) as session:
            while await session.change("presume_success", quiet="0s", limit=5_000):
                pass
        seconds["presumed"] = time.perf_counter() - started
        after = _number(sql, "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")
        sql.execute("vacuum full retry")
        row = _number(sql, "select pg_total_relation_size('retry')")
        history = _number(
            sql,
            "select sum(pg_total_relation_size(inhrelid)) from pg_inherits where inhparent = 'transition'::regclass",
        )
    await store.close()
    return Cost(count, seconds, row // count, history // count, (after - before) // count)


async def _life(store: Store, ids: list[str], seconds: dict[str, float]) -> None:
    """Claim, record, return: a batch at a time, as the service does it."""
    now = time.time_ns() // 1_000_000 - 60_000
    marks = [time.perf_counter()]
    await store.claim([Claim(one, 1, False, False, 0, "orders", one, None) for one in ids])
    marks.append(time.perf_counter())
    await store.record([_record(one, now) for one in ids])
    marks.append(time.perf_counter())
    await store.returned([Return(one, 1, "orders", 1, now + 2_000, now + 2_010, redelivered=False) for one in ids])
    marks.append(time.perf_counter())
    for step, start, end in zip(("claim", "record", "returned"), marks, marks[1:], strict=False):
        seconds[step] += end - start


def _record(retry: str, now: int) -> Record:
    return Record(
        retry,
        1,
        State.SCHEDULED,
        "orders",
        routing_key="orders",
        message_id=retry,
        retry_count=1,
        max_retries=3,
        policy="default",
        error_class="retryable",
        error_type="Timeout",
        error_reason="the other side took too long",
        since_ms=now,
        due_ms=now + 2_000,
        delay_ms=2_000,
        tier="retry.delay.2s",
        body=BODY,
        properties=PROPERTIES,
    )


def _number(sql: psycopg.Connection, question: str) -> int:
    row = sql.execute(question.encode()).fetchone()
    return int(row[0]) if row else 0
