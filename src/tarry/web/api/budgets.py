"""Budgets: what is used of them, and the exceptions of owners."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query
from pydantic import Field

from tarry.operations.budgets import BudgetList, OwnerLimitChanged
from tarry.web.api.auth import Looker, Operator, Requested
from tarry.web.api.dependencies import Operations
from tarry.web.api.parameters import Limit, Owner, Text

router = APIRouter(prefix="/budgets", tags=["budgets"])

MOST = 2**53
MOST_RETRIES = 1_000

OfOwner = Annotated[Owner, Path(description="The owner, as in the header `owner` of its messages.")]


class ExceptionFor(Requested):
    """Which exception, and why."""

    policy: Text | None = Field(None, description="Only for this policy; null: for all.")
    reason: Text | None = Field(None, description="Shown with the exception.")


class ExceptionWanted(ExceptionFor):
    """The limits; what is null stays as it is."""

    hourly: int | None = Field(None, ge=0, le=MOST, description="In place of the limit per owner and hour.")
    daily: int | None = Field(None, ge=0, le=MOST, description="In place of the limit per owner and day.")
    monthly: int | None = Field(None, ge=0, le=MOST, description="In place of the limit per owner and month.")
    max_retries: int | None = Field(None, ge=0, le=MOST_RETRIES, description="The most retries of each message.")


@router.get("", summary="Exceptions of owners, and what is used of budgets")
async def list_budgets(
    _caller: Looker,
    operations: Operations,
    *,
    owner: Annotated[Owner | None, Query(description="Only of this owner.")] = None,
    policy: Annotated[Text | None, Query(description="Only of this policy. 404 if there is none.")] = None,
    limit: Limit = 50,
) -> BudgetList:
    """For each owner, queue or policy with a counter: used, limit, the period, and what is used of later periods."""
    return await operations.list_budgets(owner=owner, policy=policy, limit=limit)


@router.post("/{owner:path}/set", summary="Set the exception of an owner")
async def set_budget(
    caller: Operator, operations: Operations, owner: OfOwner, body: ExceptionWanted
) -> OwnerLimitChanged:
    """Limits apply from the next retry on, `max_retries` within a second. 404 if there is no such policy."""
    return await operations.acting_as(caller.actor(body.requested_by)).set_budget(
        owner,
        policy=body.policy,
        hourly=body.hourly,
        daily=body.daily,
        monthly=body.monthly,
        max_retries=body.max_retries,
        reason=body.reason,
    )


@router.post("/{owner:path}/unset", summary="Remove the exception of an owner")
async def unset_budget(
    caller: Operator, operations: Operations, owner: OfOwner, body: Annotated[ExceptionFor | None, Body()] = None
) -> OwnerLimitChanged:
    """The limits of the policies apply again. 404 if there is no such exception."""
    wanted = body or ExceptionFor()
    acting = operations.acting_as(caller.actor(wanted.requested_by))
    return await acting.unset_budget(owner, policy=wanted.policy, reason=wanted.reason)
