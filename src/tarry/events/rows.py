"""Makes events from rows of the history and of the action log. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tarry.core.states import Note, State
from tarry.events.cloudevent import Event, EventType

ACTIONS = {
    "pause": EventType.PAUSED,
    "resume": EventType.RESUMED,
    "breaker_opened": EventType.BREAKER_OPENED,
    "breaker_closed": EventType.BREAKER_CLOSED,
    "anomaly_began": EventType.ANOMALY_BEGAN,
    "anomaly_ended": EventType.ANOMALY_ENDED,
}
"""The kinds of actions that have an event. The others act on retries, whose steps have events of their own."""

_BY_STATE: dict[str, EventType] = {
    State.RETURNED: EventType.RETURNED,
    State.SUCCEEDED: EventType.SUCCEEDED,
    State.CANCELLED: EventType.CANCELLED,
    State.HELD: EventType.HELD,
    State.UNROUTABLE: EventType.UNROUTABLE,
    State.DISCARDED: EventType.DISCARDED,
    State.SKIPPED: EventType.SKIPPED,
    Note.DUPLICATE: EventType.DUPLICATE,
    Note.OVERDUE: EventType.OVERDUE,
    Note.MISSING: EventType.MISSING,
    Note.RECOVERED: EventType.RECOVERED,
    Note.STUCK: EventType.STUCK,
}

_BY_HAND = ("retry now", "recovered from a stuck attempt")
"""How the reason of a step begins that schedules a retry without a new failure."""


class StepRow(NamedTuple):
    """A row of the query `event_steps`: a step of the history, and what the store knows about the retry now."""

    xid: int
    id: int
    retry_id: str
    round: int
    state: str
    at: datetime
    actor: str
    reason: str | None
    detail: Mapping[str, Any] | None
    queue: str | None
    message_id: str | None
    policy: str | None
    owner: str | None
    job_type: str | None
    priority: str | None
    max_retries: int | None
    attempt: int | None
    error_class: str | None
    error_type: str | None
    fingerprint: str | None

    @classmethod
    def of(cls, row: Sequence[Any]) -> StepRow:
        return cls(int(row[0]), *row[1:])

    @property
    def begins_round(self) -> bool:
        """Whether a router has scheduled a failed message. It records that after the broker has confirmed it, so the
        history can have the return before it.
        """
        detail = self.detail or {}
        return self.state == State.SCHEDULED and "due_ms" in detail and "job" not in detail

    @property
    def order(self) -> tuple[int, int, int]:
        """Of the steps of one retry."""
        rank = 1 if self.begins_round else 3 if self.state == State.SUCCEEDED else 2
        return self.round, rank, self.id


OF_THE_RETRY = (
    *("queue", "message_id", "policy", "owner", "job_type", "priority"),
    *("max_retries", "error_class", "error_type", "fingerprint"),
)
"""The columns about the retry as it is now, whatever the step."""


class ActionLogRow(NamedTuple):
    """A row of the query `event_actions`."""

    xid: int
    id: str
    at: datetime
    actor: str
    kind: str
    target: str
    detail: Mapping[str, Any]
    outcome: Mapping[str, Any] | None

    @classmethod
    def of(cls, row: Sequence[Any]) -> ActionLogRow:
        return cls(int(row[0]), *row[1:])


def event_of_step(step: StepRow, source: str) -> Event:
    round_, rank, id_ = step.order
    return Event(
        id=f"{step.retry_id}/{step.id}",
        type=_type_of(step),
        source=source,
        subject=step.retry_id,
        time=step.at,
        sequence=f"{round_:07d}.{rank}.{id_:019d}",
        state=step.state,
        data=_known(_data_of(step)),
    )


UNPUBLISHED = frozenset({State.CLAIMED, Note.STARTED, Note.LAYOVER})
"""Steps without an event: they are of no use outside tarry, and every other step follows one of them. The query
`event_steps` leaves them out.
"""


def _type_of(step: StepRow) -> str:
    if step.state == State.IN_REVIEW:
        return EventType.EXHAUSTED if (step.reason or "").startswith("exhausted:") else EventType.IN_REVIEW
    if step.state == State.SCHEDULED:
        return _type_of_scheduled(step)
    return _BY_STATE.get(step.state) or f"tarry.retry.{step.state}"  # a router of a later version wrote it


def _type_of_scheduled(step: StepRow) -> EventType:
    if "job" in (step.detail or {}):
        return EventType.REDRIVEN
    if (step.reason or "").startswith(_BY_HAND):
        return EventType.RETRIED_NOW
    return EventType.FAILED_AGAIN if step.round > 1 and step.begins_round else EventType.SCHEDULED


def _data_of(step: StepRow) -> dict[str, Any]:
    """What the step itself says comes before what the store knows about the retry now: a later step may have changed
    that.
    """
    detail = step.detail or {}
    due_ms = detail.get("due_ms")
    return {
        "retry_id": step.retry_id,
        "round": step.round,
        "actor": step.actor,
        "queue": step.queue,
        "message_id": step.message_id,
        "policy": detail.get("policy", step.policy),
        "owner": detail.get("owner", step.owner),
        "job_type": step.job_type,
        "priority": step.priority,
        "attempt": detail.get("attempt", step.attempt),
        "max_retries": step.max_retries,
        "error_class": detail.get("class", step.error_class),
        "error_type": step.error_type,
        "fingerprint": detail.get("fingerprint", step.fingerprint),
        "reason": step.reason,
        "due_at": None if due_ms is None else datetime.fromtimestamp(due_ms / 1000, UTC).isoformat(),
        "delay_ms": detail.get("delay_ms"),
        "drift_ms": detail.get("drift_ms"),
    }


def event_of_action(row: ActionLogRow, source: str) -> Event | None:
    """None for an action that has no event, or did not succeed."""
    kind, outcome = ACTIONS.get(row.kind), row.outcome or {}
    if kind is None or "error" in outcome:
        return None
    return Event(
        id=row.id if row.outcome is not None else f"{row.id}/unfinished",  # it may end after all: another event
        type=kind,
        source=source,
        subject=row.target,
        time=row.at,
        sequence=f"{int(row.at.timestamp() * 1_000_000):019d}",
        state=kind.word,
        data=_known(_data_of_action(row, outcome)),
    )


def _data_of_action(row: ActionLogRow, outcome: Mapping[str, Any]) -> dict[str, Any]:
    scope, _, name = row.target.partition(" ")
    scope = outcome.get("scope") or (scope if name else "queue")
    destinations = outcome.get("destinations")
    return {
        "action_id": row.id,
        "kind": row.kind,
        "target": row.target,
        "actor": row.actor,
        "queue": row.target if scope == "queue" else None,
        "policy": row.target.removeprefix("policy ") if scope == "policy" else None,
        "destinations": list(destinations) if isinstance(destinations, list | dict) else None,
        "reason": row.detail.get("reason") or row.detail.get("why"),
        "until": outcome.get("until"),
        "unfinished": True if row.outcome is None else None,
        **{name: row.detail.get(name) for name in ("returned", "failed")},
        "failure_rate": row.detail.get("rate"),
        "usual_rate": row.detail.get("usual_rate"),
    }


def _known(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if value is not None}
