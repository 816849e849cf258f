"""The topology as the service knows it, and the live broker against it."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from tarry.topology.findings import Finding
from tarry.web.api.auth import Looker
from tarry.web.api.desk import TheDesk
from tarry.web.api.shared import Shared

router = APIRouter(prefix="/topology", tags=["topology"])


class Tier(BaseModel):
    """A queue with one fixed TTL."""

    queue: str
    ttl_ms: int


class Shape(BaseModel):
    """What the topology files say."""

    names: dict[str, str] = Field(description="The names section: the prefix, and the queues that people know.")
    tiers: list[Tier] = Field(description="One for each delay of a policy; others go by the ladder.")
    destinations: list[str] = Field(description="Globs of queues that are bound on first sight.")
    time_scale: float
    policies: list[dict[str, Any]] = Field(description="In order; the first match wins.")


class Told(BaseModel):
    """One finding, and the command that mends it."""

    model_config = ConfigDict(from_attributes=True)

    check: str
    level: Literal["wrong", "note"]
    things: list[str]
    problem: str
    mend: str


class Findings(BaseModel):
    """Everything that is not as it should be."""

    findings: list[Told]


@router.get("", summary="What the topology files say")
async def show_topology(_caller: Looker, desk: TheDesk) -> Shape:
    """Names, tiers, policies."""
    topology, names = desk.topology, desk.names
    return Shape(
        names={name: str(value) for name, value in topology.names.model_dump(mode="json").items()},
        tiers=[Tier(queue=names.tier(ms), ttl_ms=ms) for ms in sorted(topology.rules.tiers)],
        destinations=list(topology.destinations),
        time_scale=topology.time_scale,
        policies=[policy.model_dump(mode="json", by_alias=True) for policy in topology.policies],
    )


@router.get("/findings", summary="The live broker against the files")
async def show_findings(_caller: Looker, request: Request) -> Findings:
    """As `tarry topology verify`; none with the level `wrong` means that the broker can be trusted with retries."""
    found: Shared[list[Finding]] = request.app.state.findings
    return Findings(findings=[Told.model_validate(one) for one in await found.get()])
