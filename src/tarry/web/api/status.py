"""The status of the installation, as `tarry status` shows it, and of the router that answers."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from fastapi import APIRouter, Request
from pydantic import BaseModel

from tarry.core.json_types import DOCUMENTED
from tarry.operations.overview import Activity
from tarry.operations.status import ServiceStatus
from tarry.web.api.auth import Looker
from tarry.web.api.dependencies import Operations, Shared, TheService
from tarry.web.health import Readiness, readiness

router = APIRouter(tags=["status"])


class Router(BaseModel):
    """This process."""

    status: Readiness
    reasons: list[str]


@dataclass(frozen=True, slots=True)
class WholeStatus(ServiceStatus):
    """The installation, at most a few seconds ago, and the process that answers."""

    __pydantic_config__ = DOCUMENTED

    router: Router = field(kw_only=True)


@router.get("/status", summary="The status of the installation")
async def show_status(caller: Looker, operations: Operations, service: TheService, request: Request) -> WholeStatus:
    """What waits where, what is due next, what needs an operator. `troubles` lists what could not be read.

    With a token that is limited to some queues, only what concerns these.
    """
    shared: Shared[ServiceStatus] = request.app.state.status
    ready, reasons = readiness(service)
    found = await shared.get() if caller.scope is None else await operations.status()
    same = {one.name: getattr(found, one.name) for one in fields(found)}
    return WholeStatus(**same, router=Router(status=ready, reasons=reasons if caller.scope is None else []))


@router.get("/activity", summary="What is due next, and what happened last")
async def show_activity(_caller: Looker, operations: Operations) -> Activity:
    """Returns by the minute of the next hour, arrivals in review of the last hour, and the drift of recent returns."""
    return await operations.activity()
