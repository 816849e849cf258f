"""A round whose publish the broker has not confirmed is not taken to be in a held queue."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest

from tarry.store.database import query
from tests.support.audit_store import AuditStore, id_of, now_ms, request

M = id_of("m")
JOB = str(uuid.uuid4())
PAUSE = """
insert into paused_destination (destination, kind, name, state, bound_at)
values ('orders', 'queue', 'orders', 'holding', '2000-01-01')
"""


@pytest.fixture(autouse=True)
def _paused(store: AuditStore) -> None:
    """Round 1 has returned, or is in review, and the next one meets a pause."""
    store.claim(request("m"))
    store.schedule(M, 1, due_in_ms=-10)
    store.sql.execute(PAUSE)


def _run(store: AuditStore, name: str, **parameters: Any) -> Any:
    return store.sql.execute(query(name), parameters)


def _mark_held(store: AuditStore) -> str:
    """The state afterwards."""
    store.age(M, 60)
    _run(store, "mark_held", margin=timedelta(0), seen_within=timedelta(0), actor="watcher")
    return store.state(M)[0]


def _begin_copy(store: AuditStore) -> str:
    made = str(uuid.uuid4())
    about = {"id": made, "retry_id": M, "round": 1, "kind": "retry_now", "actor": "ann"}
    _run(store, "ask_diversion", **about, reason=None, on_release=False)
    _run(store, "begin_copy", id=made, now_ms=now_ms(), tier="retry.relay", properties=b"")
    store.sql.execute("update retry set body = '', properties = '' where id = %s", [M])
    assert store.state(M)[:2] == ("scheduled", 2)
    return made


def _send_from_review(store: AuditStore) -> None:
    store.sql.execute("update retry set state = 'in_review' where id = %s", [M])
    about = {"kind": "redrive", "actor": "ann", "filter": "{}", "options": "{}", "body": None, "rate": None}
    _run(store, "review_new_job", job=JOB, **about, why=None, wanted="run", here=True)
    store.sql.execute("insert into review_item (job_id, retry_id, round) values (%s, %s, 1)", [JOB, M])
    lists: dict[str, Any] = {"ids": [M], "rounds": [1], "queues": ["orders"], "counts": [1], "tiers": ["retry.relay"]}
    lists |= {"delay_ms": [0], "due_ms": [now_ms()], "bodies": [b""], "properties": [b""]}
    _run(store, "review_sending", job=JOB, **lists, reset_attempts=False, actor="ann", why=None, about="{}")
    assert store.state(M)[:2] == ("scheduled", 1)


def test_mark_held_leaves_a_retry_now_until_the_broker_has_confirmed_it(store: AuditStore) -> None:
    diversion = _begin_copy(store)
    assert _mark_held(store) == "scheduled"
    _run(store, "copied", id=diversion)
    assert _mark_held(store) == "held"


def test_mark_held_leaves_a_recovery_until_the_broker_has_confirmed_it(store: AuditStore) -> None:
    sql = "insert into stuck_recovery (retry_id, round, sent_to, actor) values (%s, 0, 'queue', 'ann')"
    store.sql.execute(sql, [M])
    assert _mark_held(store) == "scheduled"
    _run(store, "stuck_published", id=M, round=0)
    assert _mark_held(store) == "held"


@pytest.mark.parametrize("item", ["sending", "unconfirmed"])
def test_mark_held_leaves_a_redrive_until_the_broker_has_confirmed_it(store: AuditStore, item: str) -> None:
    _send_from_review(store)
    store.sql.execute("update review_item set state = %s", [item])
    assert _mark_held(store) == "scheduled"
    _run(store, "review_sent", job=JOB, ids=[M])
    assert _mark_held(store) == "held"


def test_to_copy_finds_an_unconfirmed_round_that_was_marked_held(store: AuditStore) -> None:
    """By an earlier version."""
    diversion = _begin_copy(store)
    store.sql.execute("update retry set state = 'held' where id = %s", [M])
    found = _run(store, "to_copy", id=diversion).fetchone()
    assert found is not None
    assert found[:2] == (M, 2)


@pytest.mark.parametrize("name", ["review_unsent", "review_resend_unconfirmed"])
def test_review_takes_back_an_unsent_item_that_was_marked_held(store: AuditStore, name: str) -> None:
    _send_from_review(store)
    store.sql.execute("update retry set state = 'held' where id = %s", [M])
    given = {"ids": [M], "problems": [None], "queues": ["orders"], "counts": [1]} if name == "review_unsent" else {}
    _run(store, name, job=JOB, actor="ann", **given)
    assert store.state(M)[0] == "in_review"
