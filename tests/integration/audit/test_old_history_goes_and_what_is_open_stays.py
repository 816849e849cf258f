from __future__ import annotations

import uuid
from datetime import timedelta

import psycopg
import pytest

from tarry.audit.retention import Pruned, prune
from tests.integration.audit.books import Books, id_of, request

MONTH = timedelta(days=30)


def old(books: Books, message: str, days: int) -> str:
    """A retry with its history, moved back in time."""
    retry = id_of(message)
    books.claim(request(message))
    books.schedule(retry, 1, body=b"body", properties=b"properties")
    books.sql.execute("select tarry_add_partition(current_date - %s)", [days])
    books.sql.execute(
        "with gone as (delete from transition where retry_id = %(id)s returning *)"
        " insert into transition (retry_id, round, state, actor, at)"
        " select retry_id, round, state, actor, at - %(days)s * interval '1 day' from gone",
        {"id": retry, "days": days},
    )
    books.age(retry, days * 86_400)
    return retry


def end(books: Books, retry: str, state: str) -> None:
    books.sql.execute("update retry set state = %s, returned_at = updated_at where id = %s", [state, retry])


def rows(books: Books) -> list[str]:
    return [row[0] for row in books.sql.execute("select message_id from retry order by message_id").fetchall()]


def test_whole_days_go_with_what_is_finished(books: Books) -> None:
    for message, state in (("a", "succeeded"), ("b", "returned"), ("c", "cancelled"), ("d", "discarded")):
        end(books, old(books, message, 40), state)
    young = old(books, "young", 20)
    end(books, young, "succeeded")
    day = books.sql.execute("select 'transition_' || to_char(current_date - 40, 'YYYYMMDD')").fetchone()
    assert day is not None
    assert prune(books.dsn, MONTH) == Pruned([day[0]], history=0, retries=4, payloads=0)
    assert rows(books) == ["young"]
    assert books.history(young) == [("claimed", 1), ("scheduled", 1)]
    assert prune(books.dsn, MONTH) == Pruned([], history=0, retries=0, payloads=0)


def test_nothing_open_is_ever_dropped(books: Books) -> None:
    states = ("claimed", "scheduled", "held", "unroutable", "in_review")
    for state in states:
        end(books, old(books, state, 400), state)
    assert prune(books.dsn, timedelta(days=1)).retries == 0
    assert rows(books) == sorted(states)
    for state in states:
        assert books.history(id_of(state)) == [("claimed", 1), ("scheduled", 1)], "it outlives its partition"
        kept = books.sql.execute("select body, properties from retry where message_id = %s", [state]).fetchone()
        assert kept == (b"body", b"properties")
    end(books, id_of("scheduled"), "succeeded")
    assert prune(books.dsn, timedelta(days=1)) == Pruned([], history=2, retries=1, payloads=0)


def test_payloads_may_go_sooner(books: Books) -> None:
    done, open_ = old(books, "done", 3), old(books, "open", 3)
    end(books, done, "succeeded")
    assert prune(books.dsn, MONTH, timedelta(days=2)).payloads == 1
    kept = books.sql.execute("select id::text, body from retry order by body nulls first").fetchall()
    assert kept == [(done, None), (open_, b"body")]


def test_what_came_before_its_partition_moves_into_it(books: Books) -> None:
    retry = id_of("m")
    books.sql.execute(
        "insert into transition (retry_id, round, state, actor, at)"
        " values (%s, 1, 'claimed', 'one', clock_timestamp() + interval '30 days')",
        [retry],
    )
    where = "select tableoid::regclass::text from transition where retry_id = %s"
    assert books.sql.execute(where, [retry]).fetchone() == ("transition_default",)
    made = books.sql.execute(
        "select tarry_add_partition(((clock_timestamp() + interval '30 days') at time zone 'UTC')::date)"
    )
    assert made.fetchone() == (True,)
    found = books.sql.execute(where, [retry]).fetchone()
    assert found is not None
    assert found[0] != "transition_default"


def test_history_is_not_rewritten(books: Books) -> None:
    books.claim(request("m"))
    with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
        books.sql.execute("update transition set state = 'returned'")


def test_what_is_left_of_reviews_goes_too_but_not_what_is_in_doubt(books: Books) -> None:
    open_ = old(books, "open", 40)
    jobs = {name: str(uuid.uuid4()) for name in ("over", "in_doubt", "running")}
    for name, job in jobs.items():
        books.sql.execute(
            "insert into review_job (id, kind, actor, finished_at)"
            " values (%s, 'redrive', 'alice', case when %s then null else clock_timestamp() - interval '40 days' end)",
            [job, name == "running"],
        )
        state = "in_doubt" if name == "in_doubt" else "done"
        books.sql.execute("insert into review_item values (%s, %s, 1, %s)", [job, id_of(name), state])
    for retry in (open_, id_of("gone")):
        books.sql.execute(
            "insert into review_edit (retry_id, round, job_id, at, actor, changes, body, properties)"
            " values (%s, 1, %s, clock_timestamp() - interval '40 days', 'alice', '{}', '', '')",
            [retry, jobs["over"]],
        )
    assert prune(books.dsn, MONTH).actions == 2
    left = books.sql.execute("select id::text from review_job").fetchall()
    assert sorted(row[0] for row in left) == sorted([jobs["in_doubt"], jobs["running"]])
    assert books.sql.execute("select retry_id::text from review_edit").fetchall() == [(open_,)]
