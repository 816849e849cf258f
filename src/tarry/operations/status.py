"""The status of the installation, from the audit and the broker; lists what could not be read from either of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from tarry.amqp.management import Management
from tarry.attach.listing import AttachmentState, attachments
from tarry.attach.snapshot import read_snapshot
from tarry.audit.anomalies import AnomalyNow, read_anomalies
from tarry.audit.depths import Depths, read_depths
from tarry.audit.status import (
    Counts,
    InTier,
    PausedNow,
    RouterStatus,
    in_tiers,
    read_counts,
    read_paused,
    read_routers,
)
from tarry.core.json_types import DOCUMENTED
from tarry.core.names import Destination
from tarry.core.queue_scope import QueueScope
from tarry.errors import AuditError, BrokerError
from tarry.events.lag import EventsStatus, read_events_status
from tarry.operations.context import OperatorContext
from tarry.store.database import Row, SessionSettings
from tarry.store.rows import GRACE
from tarry.tasks import in_thread
from tarry.topology.model import Topology
from tarry.topology.partial import NamesOnly
from tarry.topology.record import TopologySource

PATIENCE = 5
"""Timeout of requests to the management API, in seconds."""

NO_BUDGETS = "Budgets are not applied while Postgres is unavailable: retries are scheduled without them."

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AttachmentStatus:
    """One attached destination."""

    __pydantic_config__ = DOCUMENTED

    name: str
    kind: str
    state: AttachmentState
    detail: str
    """What is wrong, and the command that fixes it."""
    merged_with: str | None
    """The user's policy whose keys tarry's policy includes."""


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The status at one moment."""

    __pydantic_config__ = DOCUMENTED

    topology: TopologySource | None
    """null if the topology files have errors, or if the token is limited to some queues."""
    audit: Counts | None
    """null if Postgres could not be read."""
    tiers: list[InTier]
    queues: dict[str, int]
    """Messages in the queues that the service or an operator reads: a backlog there needs attention."""
    paused: list[PausedNow]
    attachments: list[AttachmentStatus]
    routers: list[RouterStatus]
    """All running routers, and those that stopped reporting in the last day."""
    troubles: list[str]
    """What could not be read, and why."""
    events: EventsStatus | None = None
    """null if events are off, or if the token is limited to some queues."""
    anomalies: list[AnomalyNow] = field(default_factory=list)
    """Queues and policies whose retries fail far more often than usual."""


async def read_status(context: OperatorContext, *, patience: int = PATIENCE) -> ServiceStatus:
    """Everything that can be read. `patience` is the timeout of each request to the management API."""
    troubles: list[str] = []
    management = Management(context.address, timeout=patience)
    depths = await _from_broker(lambda: read_depths(management, context.names), troubles)
    stored = await _from_store(context, troubles)
    attached = await _from_broker(lambda: _attachments(context, management), troubles) if depths else None
    files = context.files
    if stored.counts is None and isinstance(files, Topology) and files.rules.charges:
        troubles.append(NO_BUDGETS)
    return ServiceStatus(
        topology=TopologySource.of(files) if isinstance(files, Topology) else None,
        audit=stored.counts,
        tiers=in_tiers(stored.open_by_tier, depths),
        queues=_read_queues(context, depths) if depths else {},
        paused=stored.paused,
        attachments=attached or [],
        routers=stored.routers,
        troubles=troubles,
        events=stored.events,
        anomalies=stored.anomalies,
    )


async def read_scoped_status(context: OperatorContext, scope: QueueScope, *, patience: int = PATIENCE) -> ServiceStatus:
    """What concerns these queues. Queues that all retries share are left out: their depths count other retries too."""
    troubles: list[str] = []
    management = Management(context.address, timeout=patience)
    attached = await _from_broker(lambda: _attachments(context, management), troubles)
    counts, paused, anomalies = None, list[PausedNow](), list[AnomalyNow]()
    try:
        async with context.store.dedicated(SessionSettings.OPERATOR) as session:
            rows = await session.rows("counts_in_scope", scope=scope.likes(), grace=GRACE)
            counts, paused = Counts(*rows[0]), await read_paused(session)
            anomalies = await read_anomalies(session, scope)
    except AuditError as error:
        troubles.append(str(error))
    return ServiceStatus(
        topology=None,
        audit=counts,
        tiers=[],
        queues={},
        paused=[one for one in paused if scope.allows(one.what)],
        attachments=[one for one in attached or [] if scope.allows(_label(one))],
        routers=[],
        troubles=troubles,
        anomalies=anomalies,
    )


async def _from_broker(ask: Callable[[], T], troubles: list[str]) -> T | None:
    try:
        return await in_thread(ask, "status")
    except BrokerError as error:
        troubles.append(str(error))
        return None


@dataclass(frozen=True, slots=True)
class _Stored:
    """What the store says; nothing if it could not be read."""

    counts: Counts | None = None
    open_by_tier: list[Row] | None = None
    paused: list[PausedNow] = field(default_factory=list)
    routers: list[RouterStatus] = field(default_factory=list)
    events: EventsStatus | None = None
    anomalies: list[AnomalyNow] = field(default_factory=list)


async def _from_store(context: OperatorContext, troubles: list[str]) -> _Stored:
    try:
        async with context.store.dedicated(SessionSettings.OPERATOR) as session:
            return _Stored(
                await read_counts(session),
                await session.rows("open_by_tier"),
                await read_paused(session),
                await read_routers(session),
                await read_events_status(session) if _has_events(context.files) else None,
                await read_anomalies(session),
            )
    except AuditError as error:
        troubles.append(str(error))
        return _Stored()


def _has_events(files: Topology | NamesOnly) -> bool:
    """If the files have errors it is not known, and the store says it."""
    return not isinstance(files, Topology) or files.events.enabled


def _label(attached: AttachmentStatus) -> str:
    return Destination("exchange" if attached.kind == "exchange" else "queue", attached.name).label


def _read_queues(context: OperatorContext, depths: Depths) -> dict[str, int]:
    names = context.names
    read = (names.scheduled, names.audit, names.review_queue, names.unroutable, names.cancelled, names.layover)
    return {name: depths[name].messages for name in read}


def _attachments(context: OperatorContext, management: Management) -> list[AttachmentStatus]:
    return [
        AttachmentStatus(found.destination.name, found.destination.kind, found.state, found.detail, found.base)
        for found in attachments(read_snapshot(management, context.names))
    ]
