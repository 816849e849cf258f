"""The action log: every action is recorded before it is carried out, and its outcome afterwards.

One of the services writes a line about each action to its log: who, what, why, and the outcome. The process that acts
may be a command, whose output nobody keeps.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import structlog

from tarry.errors import AuditError, TarryError
from tarry.store.database import PostgresPool, Row
from tarry.tasks import now_and_then

log = structlog.get_logger()

OPERATOR_ACTION = "operator action"
"""The event of the log line about an action."""

EVERY = 2.0
"""Seconds between two looks for actions to log."""

UNFINISHED_AFTER = timedelta(minutes=10)
"""An action without an outcome for this long was interrupted, and is logged without one."""

MOST = 500


ORIGIN: ContextVar[str | None] = ContextVar("origin", default=None)
"""From where the current action was requested. The part that receives the request sets it."""


@dataclass(slots=True)
class Action:
    """One row of the action log."""

    id: str
    kind: str
    target: str
    actor: str
    outcome: dict[str, Any] = field(default_factory=dict)
    """Set by the caller; written when the action is over."""


@asynccontextmanager
async def recorded(
    store: PostgresPool, *, kind: str, target: str, actor: str, detail: Mapping[str, Any] | None = None
) -> AsyncIterator[Action]:
    """Records the action before the block begins, so that nothing is done without Postgres.

    An error in the block is recorded as the outcome.
    """
    action = Action(str(uuid.uuid4()), kind, target, actor)
    await store.rows(
        "begin_action",
        id=action.id,
        actor=actor,
        kind=kind,
        target=target,
        detail=json.dumps(detail or {}, default=str),
        origin=ORIGIN.get(),
    )
    try:
        yield action
    except BaseException as error:
        action.outcome |= {"error": _problem(error), "type": type(error).__name__}
        raise
    finally:
        await _finish(store, action)


def _problem(error: BaseException) -> str:
    """The error as operators see it. The details of an unexpected error are in the log."""
    if isinstance(error, TarryError):
        return str(error)
    return "an error inside tarry" if isinstance(error, Exception) else "it was interrupted"


async def _finish(store: PostgresPool, action: Action) -> None:
    """Records the outcome. If Postgres is unavailable by now, the caller still gets the result of the action."""
    try:
        await store.rows("finish_action", id=action.id, outcome=json.dumps(action.outcome, default=str))
    except AuditError as error:
        log.warning("outcome of an action not recorded", action=action.id, kind=action.kind, reason=str(error))


async def run(store: PostgresPool, stop: asyncio.Event, *, every: float = EVERY) -> None:
    """Logs the actions of all operators until `stop` is set. Every service runs it; each action is logged once."""
    await now_and_then("action log", partial(log_actions, store), stop, every)


async def log_actions(store: PostgresPool) -> None:
    rows = await store.rows("actions_to_log", unfinished_after=UNFINISHED_AFTER, limit=MOST)
    for row in sorted(rows, key=lambda row: row[1]):
        log.info(OPERATOR_ACTION, **_fields(row))


def _fields(row: Row) -> dict[str, Any]:
    action_id, at, actor, kind, target, detail, outcome = row
    return {
        "action_id": action_id,
        "at": at.isoformat(),
        "actor": actor,
        "kind": kind,
        "target": target,
        "reason": detail.get("reason") or detail.get("why"),
        "outcome": "unfinished" if outcome is None else _short(outcome),
    }


def _short(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """The outcome with numbers instead of lists, which may be long."""
    return {name: len(value) if isinstance(value, list | dict) else value for name, value in outcome.items()}
