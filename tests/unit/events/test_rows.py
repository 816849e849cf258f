from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import jsonschema
import pytest

from tarry.core.states import Note, State
from tarry.events.cloudevent import EventType
from tarry.events.rows import (
    _BY_STATE,
    ACTIONS,
    UNPUBLISHED,
    ActionLogRow,
    StepRow,
    event_of_action,
    event_of_step,
)
from tarry.events.schema import events_schema_text
from tarry.store.database import query

AT = datetime(2030, 1, 31, 12, tzinfo=UTC)
SCHEDULED = {"policy": "gold", "due_ms": 1_900_000_000_000, "delay_ms": 2_000, "attempt": 1, "class": "retryable"}
SCHEMA = json.loads(events_schema_text())


def step(state: str, id_: int = 1, round_: int = 1, retry: str = "r1", **more: Any) -> StepRow:
    known = {"queue": "orders", "message_id": "m1", "policy": "gold", "max_retries": 3, **more}
    about = dict.fromkeys(StepRow._fields) | {"xid": id_, "id": id_, "retry_id": retry, "round": round_}
    return StepRow(**about | {"state": state, "at": AT, "actor": "router-1"} | known)  # type: ignore[arg-type]


def action(kind: str, target: str, **more: Any) -> ActionLogRow:
    about: dict[str, Any] = {"xid": 1, "id": "a1", "at": AT, "actor": "ann", "detail": {}, "outcome": {}}
    return ActionLogRow(**about | {"kind": kind, "target": target} | more)


@dataclass(frozen=True)
class Case:
    row: StepRow
    type: EventType


CASES = [
    Case(step("scheduled", detail=SCHEDULED), EventType.SCHEDULED),
    Case(step("scheduled", round_=2, detail=SCHEDULED), EventType.FAILED_AGAIN),
    Case(step("scheduled", round_=2, detail=SCHEDULED | {"job": "j"}), EventType.REDRIVEN),
    Case(step("scheduled", round_=2, detail=SCHEDULED, reason="retry now: urgent"), EventType.RETRIED_NOW),
    Case(step("scheduled", round_=2, reason="released by the throttle, and not seen to return"), EventType.SCHEDULED),
    Case(step("in_review", reason="exhausted: 3 of 3 retries spent"), EventType.EXHAUSTED),
    Case(step("in_review", reason="the error is final: it is not worth a retry"), EventType.IN_REVIEW),
    Case(step("returned", detail={"drift_ms": 4}), EventType.RETURNED),
    Case(step("missing"), EventType.MISSING),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.type.word} {case.row.reason or ''}")
def test_a_step_has_its_type_and_fits_the_schema(case: Case) -> None:
    event = event_of_step(case.row, "/tarry/%2F/retry")

    assert event.type == case.type
    assert event.key == f"{case.row.state}.gold.orders"
    jsonschema.validate(event.as_json(), SCHEMA)


def test_every_state_and_note_has_a_type_or_is_left_out_of_the_query() -> None:
    all_of_them = {*State, *Note}
    assert {*_BY_STATE, *UNPUBLISHED, State.SCHEDULED, State.IN_REVIEW} == all_of_them
    left_out = ", ".join(f"'{one}'" for one in ("claimed", "started", "layover"))
    assert {"claimed", "started", "layover"} == UNPUBLISHED
    for name in ("event_steps", "event_steps_restored", "event_lag"):
        assert f"state not in ({left_out})" in query(name).decode()


def test_a_state_of_a_later_version_is_published_too() -> None:
    assert event_of_step(step("postponed"), "/").type == "tarry.retry.postponed"


def test_a_redrive_comes_after_the_review_that_it_ends() -> None:
    found = [step("in_review", 1), step("scheduled", 2, detail=SCHEDULED | {"job": "j"}), step("returned", 3)]
    sequences = [event_of_step(one, "/").sequence for one in found]
    assert sequences == sorted(sequences)


@pytest.mark.parametrize(
    ("target", "outcome", "queue", "policy"),
    [
        ("orders", {"scope": "queue"}, "orders", None),
        ("policy gold", {"scope": "policy"}, None, "gold"),
        ("policy gold", {"destinations": []}, None, "gold"),
        ("automatic retries", {}, None, None),
        ("orders.*", None, "orders.*", None),
    ],
)
def test_an_action_names_its_queue_or_policy(target: str, outcome: Any, queue: str | None, policy: str | None) -> None:
    event = event_of_action(action("pause", target, outcome=outcome), "/")

    assert event is not None
    assert (event.queue, event.data.get("policy"), event.data.get("unfinished", False)) == (
        queue,
        policy,
        outcome is None,
    )
    jsonschema.validate(event.as_json(), SCHEMA)


def test_an_action_that_ends_after_all_has_another_event_than_while_it_was_unfinished() -> None:
    interrupted = action("resume", "orders", outcome=None)
    unfinished, ended = event_of_action(interrupted, "/"), event_of_action(interrupted._replace(outcome={}), "/")

    assert unfinished is not None
    assert ended is not None
    assert (unfinished.id, ended.id) == (f"{interrupted.id}/unfinished", interrupted.id)


def test_other_actions_and_failed_ones_have_no_event() -> None:
    assert event_of_action(action("cancel", "m1"), "/") is None
    assert event_of_action(action("pause", "orders", outcome={"error": "x"}), "/") is None
    assert set(ACTIONS) == {
        *("pause", "resume", "breaker_opened", "breaker_closed", "anomaly_began", "anomaly_ended"),
    }


def test_an_anomaly_says_how_often_retries_fail_and_what_is_usual() -> None:
    found = action("anomaly_began", "policy gold", outcome={"scope": "policy"})
    detail = {"reason": "why", "rate": 0.97, "usual_rate": 0.3, "returned": 100, "failed": 97, "error": "E"}

    event = event_of_action(found._replace(detail=detail), "/")

    assert event is not None
    assert (event.type, event.word, event.subject) == ("tarry.anomaly.began", "anomaly_began", "policy gold")
    expected = {"policy": "gold", "failure_rate": 0.97, "usual_rate": 0.3, "returned": 100, "failed": 97}
    assert expected.items() <= event.data.items()
    assert "queue" not in event.data
    jsonschema.validate(event.as_json(), SCHEMA)
