"""The topology of the service, and its comparison with the broker."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from tarry.topology.findings import Finding
from tarry.web.api.auth import Looker
from tarry.web.api.dependencies import Context, Shared, for_all_queues

router = APIRouter(prefix="/topology", tags=["topology"], dependencies=[Depends(for_all_queues)])


class Tier(BaseModel):
    """A queue with one fixed TTL."""

    queue: str
    ttl_ms: int


class Shape(BaseModel):
    """The contents of the topology files."""

    names: dict[str, str] = Field(description="The names section: the prefix and the public queues.")
    tiers: list[Tier] = Field(description="One for each delay of a policy; other delays use the ladder.")
    destinations: list[str] = Field(description="Globs of queues that are bound at their first retry.")
    time_scale: float
    policies: list[dict[str, Any]] = Field(description="In order; the first match wins.")


class FindingOut(BaseModel):
    """One finding, and the command that repairs it."""

    model_config = ConfigDict(from_attributes=True)

    check: str
    level: Literal["wrong", "note"]
    things: list[str]
    problem: str
    mend: str


class TopologyFindings(BaseModel):
    """All differences between the broker and the files."""

    findings: list[FindingOut]


@router.get("", summary="The topology")
async def show_topology(_caller: Looker, context: Context) -> Shape:
    """Names, tiers and policies from the topology files."""
    topology, names = context.topology, context.names
    return Shape(
        names={name: str(value) for name, value in topology.names.model_dump(mode="json").items()},
        tiers=[
            Tier(queue=names.tier(ms, lane), ttl_ms=ms)
            for lane in (None, *topology.lanes)
            for ms in sorted(topology.rules.tiers_of(lane))
        ],
        destinations=list(topology.destinations),
        time_scale=topology.time_scale,
        policies=[policy.model_dump(mode="json", by_alias=True) for policy in topology.policies],
    )


@router.get("/findings", summary="Compare the broker with the topology files")
async def show_findings(_caller: Looker, request: Request) -> TopologyFindings:
    """As `tarry topology verify`. Without findings of the level `wrong`, the broker is ready for retries."""
    found: Shared[list[Finding]] = request.app.state.findings
    return TopologyFindings(findings=[FindingOut.model_validate(one) for one in await found.get()])
