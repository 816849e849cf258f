"""Advice about the policies, from the history."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query

from tarry.operations.advice import USUAL, PolicyAdvice
from tarry.web.api.auth import Looker
from tarry.web.api.dependencies import Operations
from tarry.web.api.parameters import Moment

router = APIRouter(prefix="/advice", tags=["policies"])


@router.get("", summary="What can be better about the policies")
async def advise(
    _caller: Looker,
    operations: Operations,
    *,
    since: Annotated[Moment | None, Query(description="Retries since then; by default of the last seven days.")] = None,
) -> PolicyAdvice:
    """Retries that never help, delays that are too short or too long, caps that are never reached: each with its
    evidence, and with the change of the policy where there is an exact one. Changes nothing.
    """
    return await operations.advise_policies(since=since or datetime.now(UTC) - USUAL)
