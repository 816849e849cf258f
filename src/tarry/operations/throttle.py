"""Throttles: at most so many returns a second to a destination, requested by operators or by `max_rate` of a policy.

A throttle is a release that never ends. The destination's held binding stays, so every return passes the held queue,
and the service releases from it at the rate. The lowest rate that applies to a destination counts.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta

import structlog

from tarry.core.names import Destination, is_gate_key
from tarry.errors import BrokerError, BrokerUnreachableError, ControlError, NotFoundError
from tarry.operations.action_log import recorded
from tarry.operations.context import OperatorContext
from tarry.operations.destinations import can_be_held, is_glob, matching, matching_destinations
from tarry.operations.paused_destination import (
    RELEASE_RATE,
    PausedDestination,
    assert_throttle,
    read_paused_destinations,
)
from tarry.topology.model import Topology
from tarry.topology.partial import NamesOnly

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Throttle:
    """An operator's request: at most so many returns a second to each destination that matches the pattern."""

    id: str
    pattern: str
    rate: int
    actor: str
    reason: str | None
    at: datetime
    until: datetime | None
    is_over: bool
    """According to the clock of Postgres."""
    exceptions: list[str]
    """Matching destinations whose limit was ended individually."""

    def applies_to(self, label: str) -> bool:
        return label not in self.exceptions and not is_gate_key(label) and bool(matching(self.pattern, [label]))


@dataclass(frozen=True, slots=True)
class ThrottleView:
    """A limit, as it is shown: one that an operator requested, or that of a policy."""

    rate: int
    pattern: str | None
    """Null for the limit of a policy."""
    actor: str | None
    reason: str | None
    at: datetime | None
    until: datetime | None
    policy: str | None = None

    @classmethod
    def of(cls, throttle: Throttle) -> ThrottleView:
        return cls(throttle.rate, throttle.pattern, throttle.actor, throttle.reason, throttle.at, throttle.until)


@dataclass(frozen=True, slots=True)
class Throttled:
    """The result of a throttle."""

    pattern: str
    throttle_id: str
    rate: int
    until: datetime | None
    destinations: dict[str, int]
    """Destinations that are throttled now, each with the rate that applies to it: the lowest, if there are several."""
    problems: dict[str, str]
    """Destinations that could not be throttled, and why; the service keeps trying."""
    action_id: str


@dataclass(frozen=True, slots=True)
class Unthrottled:
    """The result of ending throttles."""

    pattern: str
    destinations: list[str]
    """Destinations without a limit from now on. The service releases what waits, and then removes the binding."""
    throttles_ended: list[str]
    """Patterns that no longer limit anything."""
    action_id: str
    still_throttled: dict[str, int] = field(default_factory=dict)
    """Destinations to which another limit applies: that of a policy."""


async def active_throttles(context: OperatorContext) -> list[Throttle]:
    return [Throttle(*row) for row in await context.store.rows("active_throttles")]


def limits(label: str, throttles: Iterable[Throttle], files: Topology | NamesOnly) -> list[ThrottleView]:
    """Every limit that applies to a destination, the lowest first."""
    found = [ThrottleView.of(one) for one in throttles if not one.is_over and one.applies_to(label)]
    destination = Destination.of_label(label)
    if isinstance(files, Topology) and destination.kind == "queue":
        found += [
            ThrottleView(policy.max_rate, None, None, None, None, None, policy.name)
            for policy in files.rules.policies_of_queue(destination.name)
            if policy.max_rate is not None
        ]
    return sorted(found, key=lambda one: one.rate)


def wanted_rate(label: str, throttles: Iterable[Throttle], files: Topology | NamesOnly) -> int | None:
    """The lowest rate that applies to a destination; None if there is no limit."""
    found = limits(label, throttles, files)
    return found[0].rate if found and can_be_held(label) else None


def limits_unknown_destinations(throttles: Iterable[Throttle], files: Topology | NamesOnly) -> bool:
    """Whether a destination that appears may have to be throttled."""
    by_policy = isinstance(files, Topology) and any(policy.max_rate is not None for policy in files.policies)
    return by_policy or any(is_glob(one.pattern) for one in throttles)


async def throttle(
    context: OperatorContext,
    pattern: str,
    *,
    rate: int,
    actor: str,
    reason: str | None = None,
    lasts: timedelta | None = None,
) -> Throttled:
    """Limits the returns to destinations that match, also to those that appear later. It replaces an earlier throttle
    of the same pattern.
    """
    if rate < 1:
        raise ControlError(f"At {rate} a second nothing would return: choose 1 or more, or use `tarry pause`.")
    detail = {"rate": rate, "reason": reason, "lasts_s": lasts.total_seconds() if lasts else None}
    async with recorded(context.store, kind="throttle", target=pattern, actor=actor, detail=detail) as action:
        labels = await matching_destinations(context, pattern)
        await context.binder.version()  # nothing is stored if the broker is unreachable
        replaced = [one for one in await active_throttles(context) if one.pattern == pattern]
        made = str(uuid.uuid4())
        about = {"id": made, "pattern": pattern, "actor": actor, "reason": reason, "lasts": lasts, "rate": rate}
        row = await context.store.one("begin_pause", scope="throttle", **about, canary=False, observe=None)
        throttles = [one for one in await active_throttles(context) if one not in replaced]
        held = {label: found for label in labels if (found := wanted_rate(label, throttles, context.files)) is not None}
        problems = await _begin(context, held)
        if problems and set(problems) == set(labels) and not _may_be_done(problems.values()):
            await _undo(context, made, labels)
            raise BrokerError("\n".join(dict.fromkeys(map(str, problems.values()))))
        await context.store.change("end_pauses", ids=[one.id for one in replaced], by=actor)
        done = {label: found for label, found in held.items() if label not in problems}
        reasons = {label: str(problem) for label, problem in problems.items()}
        answer = Throttled(pattern, made, rate, row[0] if row else None, done, reasons, action.id)
        action.outcome = asdict(answer)
    return answer


async def unthrottle(context: OperatorContext, pattern: str, *, actor: str, reason: str | None = None) -> Unthrottled:
    """Ends the throttles of operators. The limit of a policy stays."""
    async with recorded(
        context.store, kind="unthrottle", target=pattern, actor=actor, detail={"reason": reason}
    ) as action:
        throttles, rows = await active_throttles(context), await read_paused_destinations(context)
        ended = [one for one in throttles if matching(pattern, [one.pattern])]
        labels = [row.label for row in rows if row.throttle is not None and matching(pattern, [row.label])]
        wider = [one for one in throttles if one not in ended and any(map(one.applies_to, labels))]
        if not ended and not wider:
            raise NotFoundError(_nothing_throttled(context, pattern, labels))
        async with context.store.transaction() as page:
            await page.change("end_pauses", ids=[one.id for one in ended], by=actor)
            await page.change("except_destinations", ids=[one.id for one in wider], destinations=labels)
        left = await active_throttles(context)
        rates = {label: wanted_rate(label, left, context.files) for label in labels}
        for label, rate in rates.items():
            await set_rate(context, label, rate)
        still = {label: rate for label, rate in rates.items() if rate is not None}
        free = [label for label in labels if label not in still]
        answer = Unthrottled(pattern, free, [one.pattern for one in ended], action.id, still)
        action.outcome = asdict(answer)
    return answer


def _nothing_throttled(context: OperatorContext, pattern: str, labels: Sequence[str]) -> str:
    by_policy = [one for label in labels for one in limits(label, [], context.files)]
    if by_policy:
        return (
            f"No operator has throttled {pattern!r}: the limit is `max_rate` of policy {by_policy[0].policy!r}. Change "
            "it in the policy's file."
        )
    return f"Nothing that matches {pattern!r} is throttled: see `tarry pauses`."


async def set_rate(context: OperatorContext, label: str, rate: int | None) -> None:
    """Stores the limit of a destination, or that it has none. The service binds and releases."""
    if rate is None:
        await context.store.change("unthrottle_destination", destination=label)
        return
    destination = Destination.of_label(label)
    about = {"destination": label, "kind": destination.kind, "name": destination.name}
    await context.store.change("throttle_destination", **about, rate=RELEASE_RATE, throttle=rate)


async def _begin(context: OperatorContext, rates: dict[str, int]) -> dict[str, BrokerError]:
    """Throttles the destinations; returns those that could not be throttled, and why."""
    problems: dict[str, BrokerError] = {}
    for label, rate in rates.items():
        await set_rate(context, label, rate)
        try:
            await assert_throttle(context, Destination.of_label(label))
        except BrokerError as error:
            problems[label] = error
    return problems


def _may_be_done(problems: Iterable[BrokerError]) -> bool:
    """If the broker became unreachable, the outcome is unknown: the request stays, and the service resumes it."""
    return any(isinstance(problem, BrokerUnreachableError) for problem in problems)


async def _undo(context: OperatorContext, throttle_id: str, labels: Iterable[str]) -> None:
    await context.store.change("end_pauses", ids=[throttle_id], by="refused by the broker")
    for label in labels:
        await context.store.change("drop_throttled", destination=label, throttle_id=throttle_id)


async def end_expired_throttles(context: OperatorContext, throttles: Iterable[Throttle]) -> None:
    """Records the end of throttles that were requested for a time, and have expired."""
    for one in throttles:
        if one.is_over:
            why = f"{one.actor}'s throttle expired"
            async with recorded(
                context.store, kind="unthrottle", target=one.pattern, actor=context.actor, detail={"why": why}
            ):
                await context.store.change("end_pauses", ids=[one.id], by=why)
            log.info("throttle expired", target=one.pattern)


async def reconcile_throttles(
    context: OperatorContext,
    throttles: Sequence[Throttle],
    paused_destinations: Iterable[PausedDestination],
    known: Iterable[str],
) -> None:
    """Brings the limits of all known destinations in line with what operators and policies ask for."""
    rates = {one.label: one.throttle for one in paused_destinations if not is_gate_key(one.label)}
    named = [one.pattern for one in throttles if not is_glob(one.pattern)]
    for label in sorted({*rates, *known, *named}):
        wanted = wanted_rate(label, throttles, context.files)
        if wanted != rates.get(label):
            await set_rate(context, label, wanted)
            log.info("throttle changed", destination=label, rate=wanted)
