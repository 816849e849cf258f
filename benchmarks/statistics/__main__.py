"""Statistics at full size, without a broker: are they exact, and what does counting cost?

    python -m benchmarks.statistics [--steps 1000000] [--rate 500] [--json FILE]

Exits with 1 if statistics differ from a count of the whole history, if a pass over a minute takes 2 s or more (the
median of eight), or if the history is smaller than that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from tarry import embedded
from tarry.analytics.rollups import count_new_steps
from tarry.store.database import SessionSettings, migrate, open_session
from tests.support.seeded_history import SeededHistory, by, expected_counts, stored

LONGEST_PASS = 2.0
KILLS = 12
MINUTES = 8
ROUNDS = 2.04
STEPS = 7.1
"""Rounds and steps of a retry of the seeded history, on average; a little less, so that there are enough."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=500, help="retries scheduled in a second")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one-pass", metavar="DSN", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one_pass:
        asyncio.run(_pass(options.one_pass, 60.0))
        return 0
    with embedded.postgres(durable=False) as server:
        server.ensure_database("minute")
        found = {"minute": measure_minutes(server.dsn("minute"), options.rate)}
        server.ensure_database("proof")
        found["proof"] = prove(server.dsn("proof"), options.steps)
    text = json.dumps(found, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    proof, minute = found["proof"], found["minute"]
    enough = proof["steps"] >= options.steps and minute["scheduled_s"] >= options.rate
    return 0 if enough and proof["differences"] == [] and minute["median_s"] < LONGEST_PASS else 1


def prove(dsn: str, steps: int) -> dict[str, Any]:
    """Half of the history was written before counting began. Passes over all of it are killed, twelve times."""
    asyncio.run(migrate(dsn))
    since = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(days=3)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set time zone 'UTC'")
        for day in range(4):
            connection.execute("select tarry_add_partition(%s)", ((since + timedelta(days=day)).date(),))
        history = SeededHistory(connection, math.ceil(steps / STEPS), since, 3 * 86_400 - 600)
        history.write(history.steps // 2)
        asyncio.run(_pass(dsn, 0.0))
        history.write()
        connection.execute("analyze transition")
        kills, started = 0, time.perf_counter()
        draw = random.Random(4711)
        while not _is_counted(connection):
            counting = subprocess.Popen([sys.executable, "-m", "benchmarks.statistics", "--one-pass", dsn])
            try:
                counting.wait(draw.uniform(1.5, 5.0) if kills < KILLS else None)
            except subprocess.TimeoutExpired:
                counting.kill()
                counting.wait()
                kills += 1
        taken = time.perf_counter() - started
        differences = _differences(connection)
        rows = connection.execute("select count(*), pg_total_relation_size('statistic') from statistic").fetchone()
    return {
        "steps": history.steps,
        "kills": kills,
        "seconds": round(taken, 1),
        "rows": rows[0] if rows else 0,
        "bytes": rows[1] if rows else 0,
        "differences": differences,
    }


async def _pass(dsn: str, seconds: float) -> None:
    async with open_session(dsn, SessionSettings.STATISTICS) as session:
        await count_new_steps(session, seconds=seconds)


def _is_counted(connection: psycopg.Connection[Any]) -> bool:
    row = connection.execute(
        "select before_day is null and not exists (select from transition where xid > transition_xid and id > since_id)"
        "  from statistic_position"
    ).fetchone()
    return bool(row and row[0])


def _differences(connection: psycopg.Connection[Any]) -> list[str]:
    """Where statistics differ from the history. Each series with rows of its own is exact, and so are all sums."""
    counts = expected_counts(connection)
    found: list[str] = []
    for span in ("hour", "day"):
        for kind, names in {"queue": ("attempt",), "error": ("error", "attempt"), "owner": ("owner",)}.items():
            exact = by(counts, span, "queue", "policy", *names)
            keys = {"queue": (0, 1, 2, 4), "error": (0, 1, 2, 3, 4), "owner": (0, 1, 2, 3)}[kind]
            own = {tuple(key[n] for n in keys): row for key, row in stored(connection, span, kind).items()}
            rest = stored(connection, span, kind, other=True)
            wrong = [key for key, row in own.items() if exact.get(key) != row]
            if wrong or _sums(own) + _sums(rest) != _sums(exact) or (not rest and own.keys() != exact.keys()):
                found.append(f"{span} by {kind}: {len(wrong)} of {len(exact)} rows differ")
            print(f"{span} by {kind}: {len(own)} rows, {len(rest)} of others, {len(wrong)} differ", file=sys.stderr)
    return found


def _sums(rows: dict[tuple[Any, ...], tuple[int, ...]]) -> Counter[tuple[datetime, int]]:
    """Of each hour or day, the sum of each number."""
    found: Counter[tuple[datetime, int]] = Counter()
    for key, row in rows.items():
        for place, number in enumerate(row):
            found[key[0], place] += number
    return +found


def measure_minutes(dsn: str, rate: int) -> dict[str, Any]:
    """One pass after each minute of a history in which so many retries are scheduled in a second, and the same number
    returns and has an outcome.
    """
    asyncio.run(migrate(dsn))
    with psycopg.connect(dsn, autocommit=True) as connection:
        since = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=MINUTES)
        history = SeededHistory(connection, math.ceil(rate * 60 * MINUTES / ROUNDS), since, 60 * MINUTES)
        connection.execute("analyze retry")
        row = connection.execute("select count(*) from steps where state = 'scheduled'").fetchone()
        scheduled = row[0] if row else 0
        return {"scheduled_s": round(scheduled / 60 / MINUTES, 1)} | asyncio.run(_minutes(dsn, history))


async def _minutes(dsn: str, history: SeededHistory) -> dict[str, Any]:
    taken, used = [], []
    async with open_session(dsn, SessionSettings.STATISTICS) as session:
        await count_new_steps(session)
        pid = session.process_id
        for _ in range(MINUTES):
            history.write(history.steps // MINUTES)
            started, before = time.perf_counter(), _processor_s(pid)
            await count_new_steps(session, seconds=60)
            taken.append(round(time.perf_counter() - started, 2))
            used.append(round(_processor_s(pid) - before, 2))
    return {
        "steps": history.steps // MINUTES,
        "seconds": taken,
        "median_s": statistics.median(taken),
        "processor_s": used,
        "median_processor_s": statistics.median(used),
    }


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


if __name__ == "__main__":
    sys.exit(main())
