"""Who did what: every action is written down before it is done, and again with what came of it."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog

from tarry.control.books import Books
from tarry.errors import AuditError, TarryError

log = structlog.get_logger()


@dataclass(slots=True)
class Action:
    """One line of the log of actions."""

    id: str
    kind: str
    target: str
    actor: str
    outcome: dict[str, Any] = field(default_factory=dict)
    """Fill it in: it is written when the action is over."""


@asynccontextmanager
async def recorded(
    books: Books, *, kind: str, target: str, actor: str, detail: Mapping[str, Any] | None = None
) -> AsyncIterator[Action]:
    """Written before the block begins: without Postgres nothing is done. An error in the block is its outcome."""
    action = Action(str(uuid.uuid4()), kind, target, actor)
    await books.rows(
        "begin_action",
        id=action.id,
        actor=actor,
        kind=kind,
        target=target,
        detail=json.dumps(detail or {}, default=str),
    )
    try:
        yield action
    except BaseException as error:
        action.outcome |= {"error": _problem(error), "type": type(error).__name__}
        raise
    finally:
        await _finish(books, action)


def _problem(error: BaseException) -> str:
    """For people; an error that nobody foresaw is in the log."""
    if isinstance(error, TarryError):
        return str(error)
    return "an error inside tarry" if isinstance(error, Exception) else "it was interrupted"


async def _finish(books: Books, action: Action) -> None:
    """What was done is done, and is told to the caller, even if Postgres went away meanwhile."""
    try:
        await books.rows("finish_action", id=action.id, outcome=json.dumps(action.outcome, default=str))
    except AuditError as error:
        log.warning("an action's outcome was not written", action=action.id, kind=action.kind, reason=str(error))
