"""Statistics are exact: equal to a count of the whole history, whatever was interrupted, late or restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tarry.analytics import rollups
from tarry.analytics.rollups import (
    Dimension,
    StatisticFilter,
    StatisticSpan,
    StatisticsProgress,
    count_new_steps,
    read_statistics,
)
from tarry.errors import AuditError
from tarry.store.database import PostgresSession, SessionSettings
from tests.support.seeded_history import SeededHistory, by, expected_counts, stored
from tests.support.spaces import Database
from tests.support.store import in_session
from tests.support.waiting import wait_for

LATELY = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)


@pytest.fixture
def connection(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database.dsn, autocommit=True) as made:
        made.execute("set time zone 'UTC'")
        yield made


@pytest.fixture
def count(connection: psycopg.Connection[Any], database: Database) -> Callable[..., StatisticsProgress]:
    """One pass, on a connection of its own, once no transaction of another database holds up what was written."""

    def number(of: str) -> int:
        row = connection.execute(f"select pg_snapshot_{of}(pg_current_snapshot())::text").fetchone()
        assert row is not None
        return int(row[0])

    def run(*, at_once: bool = False, **options: Any) -> StatisticsProgress:
        if not at_once:
            begun = number("xmax")
            wait_for(lambda: number("xmin") >= begun, deadline=120, what="the transactions of other tests to be over")
        return in_session(database.dsn, lambda session: count_new_steps(session, **options), SessionSettings.STATISTICS)

    return run


def assert_exact(connection: psycopg.Connection[Any]) -> None:
    """The three countings, by hour and by day, against the history."""
    counts = expected_counts(connection)
    assert counts
    for span in ("hour", "day"):
        by_queue = by(counts, span, "queue", "policy", "attempt")
        assert stored(connection, span, "queue") == {(*key[:3], "", key[3]): row for key, row in by_queue.items()}
        assert stored(connection, span, "error") == by(counts, span, "queue", "policy", "error", "attempt")
        by_owner = by(counts, span, "queue", "policy", "owner")
        assert stored(connection, span, "owner") == {(*key, 0): row for key, row in by_owner.items()}


def test_count_new_steps_equals_the_history_after_each_pass(
    connection: psycopg.Connection[Any], count: Callable[..., StatisticsProgress]
) -> None:
    """With steps that come late, with presumed successes that failed after all, and with rounds in two passes."""
    count()
    history = SeededHistory(connection, 400, LATELY, 3_600, owners=300)
    while history.write(1_200, at_once=50):
        count(batch=300)
        assert_exact(connection)


def test_count_new_steps_counts_a_transaction_that_commits_late(
    connection: psycopg.Connection[Any], count: Callable[..., StatisticsProgress], database: Database
) -> None:
    count()
    history = SeededHistory(connection, 60, LATELY, 60)
    with psycopg.connect(database.dsn) as slow:
        slow.execute(
            "insert into transition (retry_id, round, state, actor) values (gen_random_uuid(), 1, 'returned', 'x')"
        )
        history.write()
        progress = count(at_once=True)
        assert progress.counted_until < datetime.now(UTC) - timedelta(hours=2), "the time of the first step that waits"
        assert "are not counted yet" in " ".join(progress.describe(datetime.now(UTC)))
        assert not stored(connection, "hour", "queue")  # its rows may become visible below those that were written
        slow.execute("update tarry_probe set at = clock_timestamp()")
        slow.commit()
    count()
    connection.execute("delete from transition where actor = 'x'")  # not counted the same: it has no drift
    assert len(stored(connection, "hour", "queue"))


def test_count_new_steps_after_a_crash_counts_each_step_once(
    connection: psycopg.Connection[Any], count: Callable[..., StatisticsProgress], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each place of a pass: after the counts were written, and after the position was."""
    count()
    history = SeededHistory(connection, 300, LATELY, 600, owners=50)
    for name in ("count_rounds", "save_statistic_position"):
        history.write(600, at_once=100)
        with monkeypatch.context() as patched:
            _die_after(patched, name, 3)
            with pytest.raises(ConnectionResetError):
                count(batch=100)
    history.write()
    count(batch=250)
    assert_exact(connection)


def _die_after(patched: pytest.MonkeyPatch, name: str, times: int) -> None:
    """The process dies after it has run this query for the third time: its connection is gone, nothing is committed."""
    left = [times]
    for method in ("rows", "change"):
        original = getattr(PostgresSession, method)

        async def run(self: PostgresSession, query: str, /, _original: Any = original, **parameters: object) -> Any:
            answer = await _original(self, query, **parameters)
            if query == name:
                left[0] -= 1
                if not left[0]:
                    await self._connection.close()
                    raise ConnectionResetError
            return answer

        patched.setattr(PostgresSession, method, run)


def test_count_new_steps_counts_the_history_before_the_latest_day_first(
    connection: psycopg.Connection[Any], count: Callable[..., StatisticsProgress], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an older version, whose steps have no transaction id; and while new steps of the same retries arrive."""
    since = LATELY - timedelta(days=2)
    for day in range(3):
        connection.execute("select tarry_add_partition(%s)", ((since + timedelta(days=day)).date(),))
    history = SeededHistory(connection, 300, since, 2 * 86_400, owners=50)
    history.write(history.steps // 2)
    connection.execute("alter table transition alter column xid drop default")
    history.write(history.steps // 4)
    connection.execute("alter table transition alter column xid set default pg_current_xact_id()")
    monkeypatch.setattr(rollups, "BATCH_BEFORE", 40)

    first = count(seconds=0)
    assert first.before_day is not None
    assert first.oldest_day == since.date()
    assert "is being counted" in " ".join(first.describe(datetime.now(UTC)))
    history.write(at_once=100)
    days = [first.before_day]
    while (progress := count(seconds=0.01)).before_day is not None:
        days.append(progress.before_day)
    assert days == sorted(days, reverse=True)
    assert progress.describe(datetime.now(UTC)) == []
    assert_exact(connection)


@pytest.mark.parametrize("ahead", [0, 4_000_000])
def test_count_new_steps_after_a_restore_to_another_cluster(
    ahead: int, connection: psycopg.Connection[Any], count: Callable[..., StatisticsProgress]
) -> None:
    """There the transaction ids begin anew, so those of the backup are above or below those of what follows."""
    count()
    history = SeededHistory(connection, 200, LATELY, 600, owners=50)
    history.write(500, at_once=50)
    count()
    history.write(200, at_once=50)  # in the backup, and not counted
    connection.execute("alter table transition disable trigger append_only")
    connection.execute("update transition set xid = (xid::text::bigint + %s)::text::xid8", (ahead,))
    connection.execute(
        "update statistic_position set system_identifier = 1,"
        " transition_xid = (transition_xid::text::bigint + %s)::text::xid8",
        (ahead,),
    )
    history.write(200, at_once=50)  # since the restore, before the service looked
    count()
    assert_exact(connection)
    history.write()
    count()
    assert_exact(connection)


def test_count_new_steps_names_the_first_series_and_counts_the_rest_as_other(
    connection: psycopg.Connection[Any], count: Callable[..., StatisticsProgress], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has a row of its own is exact; with the others the sums are."""
    monkeypatch.setattr(rollups, "MOST_SERIES", 12)
    count()
    history = SeededHistory(connection, 400, LATELY, 600, owners=200)
    while history.write(700, at_once=100):
        count()
    counts = expected_counts(connection)
    parts = {"queue": (), "error": ("error",), "owner": ("owner",)}
    for kind, names in parts.items():
        exact = by(counts, "day", "queue", "policy", *names)
        named = _without_attempt(stored(connection, "day", kind))
        own = {(*key[:3], *key[3 : 3 + len(names)]): row for key, row in named.items()}
        assert len(own) == 12
        assert own == {key: exact[key] for key in own}
        rest = _without_attempt(stored(connection, "day", kind, other=True))
        sums = [sum(row[place] for row in (*named.values(), *rest.values())) for place in range(9)]
        assert sums == [sum(row[place] for row in exact.values()) for place in range(9)]


def _without_attempt(rows: dict[tuple[Any, ...], tuple[int, ...]]) -> dict[tuple[Any, ...], tuple[int, ...]]:
    found: dict[tuple[Any, ...], tuple[int, ...]] = {}
    for key, row in rows.items():
        before = found.get(key[:4], (0,) * len(row))
        found[key[:4]] = tuple(a + b for a, b in zip(before, row, strict=True))
    return found


def test_count_new_steps_refuses_to_count_what_another_process_has(
    connection: psycopg.Connection[Any], count: Callable[..., StatisticsProgress], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the lock of the first was lost unnoticed."""
    count()
    history = SeededHistory(connection, 100, LATELY, 60)
    history.write()
    original = rollups._count_rounds

    async def overtaken(*args: Any, **parameters: Any) -> None:
        await original(*args, **parameters)
        connection.execute(
            "update statistic_position set transition_xid = (transition_xid::text::bigint + 1)::text::xid8"
        )

    with monkeypatch.context() as patched:
        patched.setattr(rollups, "_count_rounds", overtaken)
        with pytest.raises(AuditError, match="two processes"):
            count()
    assert not stored(connection, "hour", "queue")


def test_read_statistics_by_dimensions_and_filters(
    connection: psycopg.Connection[Any], count: Callable[..., StatisticsProgress], database: Database
) -> None:
    count()
    SeededHistory(connection, 300, LATELY, 3_600, owners=20).write()
    count()
    counts = expected_counts(connection)
    wanted = StatisticFilter(LATELY - timedelta(days=1), datetime.now(UTC), StatisticSpan.HOUR, queue="queue-1*")

    def read(*dimensions: Dimension, **changed: Any) -> list[rollups.Statistic]:
        return in_session(
            database.dsn, lambda session: read_statistics(session, replace(wanted, **changed), dimensions)
        )

    own = {key: number for key, number in counts.items() if key.queue.startswith("queue-1")}
    assert read()[0].counts.scheduled == sum(number for key, number in own.items() if key.what == "scheduled")
    by_error = {(one.queue, one.error): one.counts.failed for one in read(Dimension.QUEUE, Dimension.ERROR)}
    assert sum(by_error.values()) == sum(number for key, number in own.items() if key.what == "failed")
    assert {one.owner for one in read(Dimension.OWNER)} <= {f"owner-{number}" for number in range(20)}
    assert all(one.counts.success_bins == () for one in read(Dimension.ERROR))
    (total,) = read()
    assert sum(total.counts.success_bins) == total.counts.succeeded
    assert sum(total.counts.drift_bins) == total.counts.returned
    with pytest.raises(Exception, match="not divided by error"):
        read(Dimension.OWNER, Dimension.ERROR)
