from __future__ import annotations

import uuid
from datetime import timedelta

import psycopg
import pytest

from tarry.store import retention
from tarry.store.database import SessionSettings
from tarry.store.retention import PrunedHistory, prune
from tests.support.audit_store import AuditStore, id_of, request
from tests.support.histories import count_statistics
from tests.support.store import in_session

MONTH = timedelta(days=30)


def pruned(store: AuditStore, older_than: timedelta, payloads_older_than: timedelta | None = None) -> PrunedHistory:
    return in_session(store.dsn, lambda session: prune(session, older_than, payloads_older_than))


def test_prune_tells_how_many_rows_are_deleted_so_far(store: AuditStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SLICE", 2)
    for number in range(5):
        end(store, old(store, f"done-{number}", 40), "succeeded")
    seen: list[int] = []
    in_session(store.dsn, lambda session: prune(session, MONTH, progress=seen.append))
    assert seen == [2, 4, 5]


def old(store: AuditStore, message: str, days: int) -> str:
    """A retry with its history, moved back in time."""
    retry = id_of(message)
    store.claim(request(message))
    store.schedule(retry, 1, body=b"body", properties=b"properties")
    store.sql.execute("select tarry_add_partition(current_date - %s)", [days])
    store.sql.execute(
        "with gone as (delete from transition where retry_id = %(id)s returning *)"
        " insert into transition (retry_id, round, state, actor, at)"
        " select retry_id, round, state, actor, at - %(days)s * interval '1 day' from gone",
        {"id": retry, "days": days},
    )
    store.age(retry, days * 86_400)
    return retry


def end(store: AuditStore, retry: str, state: str) -> None:
    store.sql.execute("update retry set state = %s, returned_at = updated_at where id = %s", [state, retry])


def rows(store: AuditStore) -> list[str]:
    return [row[0] for row in store.sql.execute("select message_id from retry order by message_id").fetchall()]


def test_whole_days_go_with_what_is_finished(store: AuditStore) -> None:
    for state in ("succeeded", "returned", "cancelled", "discarded", "skipped"):
        end(store, old(store, state, 40), state)
    young = old(store, "young", 20)
    end(store, young, "succeeded")
    day = store.sql.execute("select 'transition_' || to_char(current_date - 40, 'YYYYMMDD')").fetchone()
    assert day is not None
    assert pruned(store, MONTH) == PrunedHistory([day[0]], history=0, retries=5, payloads=0)
    assert rows(store) == ["young"]
    assert store.history(young) == [("claimed", 1), ("scheduled", 1)]
    assert pruned(store, MONTH) == PrunedHistory([], history=0, retries=0, payloads=0)


def test_prune_leaves_what_statistics_have_not_counted_for_a_week(store: AuditStore) -> None:
    """The service was off, or a transaction was open: these steps would be missing in the statistics for ever."""
    in_session(store.dsn, count_statistics, SessionSettings.STATISTICS)
    for message, days in (("late", 32), ("too-late", 40)):
        end(store, old(store, message, days), "succeeded")

    store.sql.execute("update statistic_position set counted_until = clock_timestamp() - interval '60 days'")
    assert pruned(store, MONTH).retries == 1
    assert rows(store) == ["late"]
    assert store.history(id_of("late")) == [("claimed", 1), ("scheduled", 1)]

    store.sql.execute("update statistic_position set before_day = current_date, oldest_day = current_date - 33")
    store.sql.execute("update statistic_position set counted_until = clock_timestamp()")
    assert pruned(store, MONTH).retries == 0, "the history from before counting began is not counted yet"

    store.sql.execute("update statistic_position set before_day = null")
    assert pruned(store, MONTH).retries == 1
    assert store.history(id_of("late")) == []


def test_nothing_open_is_ever_dropped(store: AuditStore) -> None:
    states = ("claimed", "scheduled", "held", "unroutable", "in_review")
    for state in states:
        end(store, old(store, state, 400), state)
    assert pruned(store, timedelta(days=1)).retries == 0
    assert rows(store) == sorted(states)
    for state in states:
        assert store.history(id_of(state)) == [("claimed", 1), ("scheduled", 1)], "it outlives its partition"
        kept = store.sql.execute("select body, properties from retry where message_id = %s", [state]).fetchone()
        assert kept == (b"body", b"properties")
    end(store, id_of("scheduled"), "succeeded")
    assert pruned(store, timedelta(days=1)) == PrunedHistory([], history=2, retries=1, payloads=0)


def test_payloads_may_go_sooner(store: AuditStore) -> None:
    done, open_ = old(store, "done", 3), old(store, "open", 3)
    end(store, done, "succeeded")
    assert pruned(store, MONTH, timedelta(days=2)).payloads == 1
    kept = store.sql.execute("select id::text, body from retry order by body nulls first").fetchall()
    assert kept == [(done, None), (open_, b"body")]


def test_what_came_before_its_partition_moves_into_it(store: AuditStore) -> None:
    retry = id_of("m")
    store.sql.execute(
        "insert into transition (retry_id, round, state, actor, at)"
        " values (%s, 1, 'claimed', 'one', clock_timestamp() + interval '30 days')",
        [retry],
    )
    where = "select tableoid::regclass::text from transition where retry_id = %s"
    assert store.sql.execute(where, [retry]).fetchone() == ("transition_default",)
    made = store.sql.execute(
        "select tarry_add_partition(((clock_timestamp() + interval '30 days') at time zone 'UTC')::date)"
    )
    assert made.fetchone() == (True,)
    found = store.sql.execute(where, [retry]).fetchone()
    assert found is not None
    assert found[0] != "transition_default"


def test_history_is_not_rewritten(store: AuditStore) -> None:
    store.claim(request("m"))
    with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
        store.sql.execute("update transition set state = 'returned'")


def test_what_is_left_of_reviews_goes_too_but_not_what_is_unconfirmed(store: AuditStore) -> None:
    open_ = old(store, "open", 40)
    jobs = {name: str(uuid.uuid4()) for name in ("over", "unconfirmed", "running")}
    for name, job in jobs.items():
        store.sql.execute(
            "insert into review_job (id, kind, actor, finished_at)"
            " values (%s, 'redrive', 'alice', case when %s then null else clock_timestamp() - interval '40 days' end)",
            [job, name == "running"],
        )
        state = "unconfirmed" if name == "unconfirmed" else "done"
        store.sql.execute("insert into review_item values (%s, %s, 1, %s)", [job, id_of(name), state])
    for retry in (open_, id_of("gone")):
        store.sql.execute(
            "insert into review_edit (retry_id, round, job_id, at, actor, changes, body, properties)"
            " values (%s, 1, %s, clock_timestamp() - interval '40 days', 'alice', '{}', '', '')",
            [retry, jobs["over"]],
        )
    assert pruned(store, MONTH).actions == 2
    left = store.sql.execute("select id::text from review_job").fetchall()
    assert sorted(row[0] for row in left) == sorted([jobs["unconfirmed"], jobs["running"]])
    assert store.sql.execute("select retry_id::text from review_edit").fetchall() == [(open_,)]
