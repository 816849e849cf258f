"""Pauses, resumes and lists destinations, policies, job types, automatic retries and the recovery of stuck messages.

A `Pause` is what an operator requested; a `PausedDestination` is the state of one destination, policy or job type.
"""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

from tarry.core.names import (
    GATE_KINDS,
    Destination,
    Gate,
    Holder,
    describe_holder,
    is_gate_key,
)
from tarry.errors import BrokerError, BrokerUnreachableError, ConflictError, ControlError, NotFoundError
from tarry.operations.action_log import recorded
from tarry.operations.canary import canaries_of
from tarry.operations.context import OperatorContext
from tarry.operations.destinations import bound_on_broker, matching, matching_destinations, seen_in_store
from tarry.operations.intake import Intake, read_intake
from tarry.operations.paused_destination import (
    HELD,
    RELEASE_RATE,
    PausedDestination,
    assert_pause,
    begin_pause,
    count_paused_destinations,
    read_paused_destinations,
    require_gates,
    store_pause,
    undo_pause,
)
from tarry.operations.throttle import ThrottleView, active_throttles, limits
from tarry.store.database import PostgresSession
from tarry.topology.model import Topology

Scope = Literal["queue", "policy", "job-type", "automatic-retries", "stuck-recovery", "breaker"]
"""What a pause applies to: destinations, the messages of a policy or of a job type, all automatic retries, or the
recovery of stuck messages. With `breaker`: one destination, which its breaker holds."""

NAMED_SCOPES: tuple[Scope, ...] = ("queue", "policy", "job-type")
"""Scopes whose pauses have a pattern or a name."""

RATE = RELEASE_RATE
"""The default rate of a release, in messages per second."""

OBSERVE = timedelta(seconds=10)
"""The default minimum time for which a canary is watched."""

MOST_COUNTED = 100_000
"""Waiting retries without the keys of gates are counted up to this number."""


@dataclass(frozen=True, slots=True)
class ReleaseOptions:
    """How held messages are released."""

    rate: int = RATE
    """Messages per second, for each held queue."""
    canary: bool = False
    observe: timedelta = OBSERVE

    def check(self) -> None:
        if self.rate < 1:
            raise ControlError(f"A rate of {self.rate} a second releases nothing: choose 1 or more.")


@dataclass(frozen=True, slots=True)
class Pause:
    """A request that nothing returns to destinations that match the pattern, indefinitely or until a time; or nothing
    of a policy, a job type or a type.
    """

    id: str
    scope: Scope
    pattern: str
    """Of destinations; or the name of a policy or a job type; empty for the other scopes."""
    actor: str
    reason: str | None
    at: datetime
    until: datetime | None
    is_over: bool
    """According to the clock of Postgres."""
    exceptions: list[str]
    """Matching destinations that were resumed individually."""
    rate: int | None = None
    canary: bool = False
    observe: timedelta | None = None

    def wants(self, label: str) -> bool:
        """Whether this destination, policy or job type is to be paused."""
        if label in self.exceptions:
            return False
        gate = gate_of(self.scope, self.pattern)
        if gate is not None:
            return label == gate.label
        if self.scope == "breaker":
            return label == self.pattern
        return self.scope == "queue" and not is_gate_key(label) and bool(matching(self.pattern, [label]))

    @property
    def at_end(self) -> ReleaseOptions:
        """How held messages are released when the pause expires."""
        return ReleaseOptions(self.rate or RATE, self.canary, OBSERVE if self.observe is None else self.observe)

    @property
    def target(self) -> str:
        return describe_target(self.scope, self.pattern)


def gate_of(scope: Scope, name: str) -> Gate | None:
    """What holds the messages of a scope; None for destinations, and for what concerns no waiting message."""
    return Gate(scope, name) if scope in GATE_KINDS else None


def describe_target(scope: Scope, pattern: str) -> str:
    """What a pause applies to, for the action log and for display."""
    return pattern if scope in ("queue", "breaker") else f"{scope.replace('-', ' ')} {pattern}".strip()


async def is_paused(context: OperatorContext, type_: Literal["automatic-retries", "stuck-recovery"]) -> bool:
    """Whether a pause of this type is in force. One that has expired is not, even if no service has ended it yet."""
    row = await context.store.one("is_paused", scope=type_, pattern="")
    return bool(row and row[0])


async def active_pauses(context: OperatorContext) -> list[Pause]:
    return [Pause(*row) for row in await context.store.rows("active_pauses")]


@dataclass(frozen=True, slots=True)
class Paused:
    """The result of a pause."""

    pattern: str
    pause_id: str
    until: datetime | None
    destinations: list[str]
    """Destinations that are paused now; others that match are paused when they appear."""
    problems: dict[str, str]
    """Destinations that could not be paused, and why; the service keeps trying."""
    action_id: str
    scope: Scope = "queue"
    without_key: int = 0
    """Waiting retries that the pause does not apply to: an earlier version scheduled them, without the keys of policy,
    job type and automatic retries. Of a job type: all such retries, since theirs is not known."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The result of a resume."""

    pattern: str
    destinations: list[str]
    """Destinations that the service releases now."""
    rate: int
    canary: bool
    action_id: str
    pauses_ended: list[str] = field(default_factory=list)
    """Patterns that no longer pause anything."""
    scope: Scope = "queue"
    throttled: dict[str, int] = field(default_factory=dict)
    """Destinations to which a throttle applies, with its rate: messages are not released faster."""
    breakers: dict[str, str] = field(default_factory=dict)
    """Destinations that are not released, since their breaker holds them; with its state."""


async def pause(
    context: OperatorContext,
    pattern: str = "",
    *,
    scope: Scope = "queue",
    actor: str,
    reason: str | None = None,
    lasts: timedelta | None = None,
    at_end: ReleaseOptions | None = None,
) -> Paused:
    """Makes returns wait in held queues, indefinitely or for a time; then they are released as `at_end` says."""
    _check_target(scope, pattern)
    if at_end is not None:
        at_end.check()
        if scope == "stuck-recovery":
            raise ControlError("A pause of stuck recovery holds no message: at its end there is nothing to release.")
        if lasts is None:
            raise ControlError(
                "A pause without a duration does not end by itself: give one, or no options for its end."
            )
    target, end = describe_target(scope, pattern), asdict(at_end) if at_end else _AS_BY_DEFAULT
    detail = {"reason": reason, "lasts_s": lasts.total_seconds() if lasts else None} | (end if at_end else {})
    async with recorded(context.store, kind="pause", target=target, actor=actor, detail=detail) as action:
        holders = await _meant(context, scope, pattern)
        if scope != "stuck-recovery":
            await context.binder.version()  # nothing is stored if the broker is unreachable
        if any(isinstance(holder, Gate) for holder in holders):
            await require_gates(context)  # nor if it would be refused: that would end a release under way
        made = str(uuid.uuid4())
        about = {"id": made, "scope": scope, "pattern": pattern, "actor": actor, "reason": reason, "lasts": lasts}
        async with context.store.transaction() as page:
            row = await page.one("begin_pause", **about, **end)
            if len(holders) == 1:
                await store_pause(page, holders[0])
        # Of a glob the service pauses what is not paused yet. Nothing else would pause a single destination that is not
        # stored with its pause.
        problems = await _hold_all(context, holders, assert_pause if len(holders) == 1 else begin_pause)
        if problems and all(holder in problems and _is_refusal(problems[holder]) for holder in holders):
            await _undo(context, made, holders)
            raise BrokerError("\n".join(dict.fromkeys(map(str, problems.values()))))
        held = [describe_holder(holder) for holder in holders if holder not in problems]
        reasons = {describe_holder(holder): str(problem) for holder, problem in problems.items()}
        lacking = await _without_key(context, scope, pattern)
        answer = Paused(pattern, made, row[0] if row else None, held, reasons, action.id, scope, lacking)
        action.outcome = asdict(answer)
    return answer


_AS_BY_DEFAULT = {"rate": None, "canary": False, "observe": None}


async def resume(
    context: OperatorContext,
    pattern: str = "",
    *,
    scope: Scope = "queue",
    actor: str,
    rate: int = RATE,
    canary: bool = False,
    observe: timedelta = OBSERVE,
) -> Resumed:
    """Makes the service release held messages at this rate, after a canary if requested."""
    _check_target(scope, pattern)
    ReleaseOptions(rate, canary, observe).check()
    target, detail = (
        describe_target(scope, pattern),
        {"rate": rate, "canary": canary, "observe_s": observe.total_seconds()},
    )
    async with recorded(context.store, kind="resume", target=target, actor=actor, detail=detail) as action:
        paused_destinations, pauses = await read_paused_destinations(context), await active_pauses(context)
        meant = [paused for paused in paused_destinations if _is_meant(scope, pattern, paused.label)]
        labels, breakers = [paused.label for paused in meant], await breakers_not_closed(context)
        of_scope = [one for one in pauses if one.scope == scope]
        ended = [one for one in of_scope if _covers(scope, pattern, one.pattern)]
        if not labels and not ended:
            raise NotFoundError(_nothing_paused(scope, pattern))
        meant = [paused for paused in meant if paused.label not in breakers]
        if not meant and not ended and not any(one.wants(label) for one in of_scope for label in labels):
            raise ConflictError(_held_by_breaker(labels[0], breakers[labels[0]]))
        others = [one.id for one in of_scope if one not in ended]
        async with context.store.transaction() as page:
            released = await release(page, meant, ReleaseOptions(rate, canary, observe), by=actor)
            await _refuse_paused_again(page, [paused for paused in meant if paused.label not in released])
            await page.change("end_pauses", ids=[one.id for one in ended], by=actor)
            await page.change("except_destinations", ids=others, destinations=labels)
        names = [describe_holder(paused.holder) for paused in meant]
        throttled = {describe_holder(one.holder): one.throttle for one in meant if one.throttle is not None}
        ended_pauses, kept = [one.target for one in ended], {one: breakers[one] for one in labels if one in breakers}
        answer = Resumed(pattern, names, rate, canary, action.id, ended_pauses, scope, throttled, kept)
        action.outcome = asdict(answer)
    return answer


async def release(
    page: PostgresSession, paused_destinations: list[PausedDestination], options: ReleaseOptions, *, by: str | None
) -> list[str]:
    """Makes the service release what is held; returns the labels. One that was paused again since it was read stays
    paused.
    """
    labels, since = [one.label for one in paused_destinations], [one.state_since for one in paused_destinations]
    rows = await page.rows(
        "release", destinations=labels, state_since=since, **asdict(options), by=by, by_breaker=False
    )
    released = {row[0] for row in rows}
    return [label for label in labels if label in released]


async def breakers_not_closed(context: OperatorContext) -> dict[str, str]:
    """Destinations that a breaker holds or releases, and its state."""
    return {row[0]: row[1] for row in await context.store.rows("breakers_not_closed")}


def _held_by_breaker(label: str, state: str) -> str:
    return (
        f"Nothing was resumed: no operator has paused {label!r}, and its breaker is {state.replace('_', '-')}. It "
        f"closes by itself; to close it now: tarry breakers close {shlex.quote(label)} --reason '…'."
    )


async def _refuse_paused_again(page: PostgresSession, changed: list[PausedDestination]) -> None:
    """Raises if one of these is held now. Others are being released by another request, or have been."""
    for paused in changed:
        row = await page.one("paused_now", destination=paused.label)
        if row is not None and row[0] in HELD:
            raise ConflictError(
                f"Nothing was resumed: {describe_holder(paused.holder)} has just been paused again, or its canary has "
                "just failed. See `tarry pauses`, then resume again."
            )


def _check_target(scope: Scope, pattern: str) -> None:
    if scope == "breaker":
        raise ControlError("Breakers have commands of their own: see `tarry breakers`.")
    if scope in NAMED_SCOPES and not pattern:
        raise ControlError(f"Name the {scope.replace('-', ' ')}.")
    if scope not in NAMED_SCOPES and pattern:
        raise ControlError(f"A pause of type {scope} applies to all queues: it takes no name.")


def _is_meant(scope: Scope, pattern: str, label: str) -> bool:
    gate = gate_of(scope, pattern)
    if gate is not None:
        return label == gate.label
    return scope == "queue" and not is_gate_key(label) and bool(matching(pattern, [label]))


def _covers(scope: Scope, pattern: str, other: str) -> bool:
    """Whether a resume ends a pause of the other pattern. Policies and job types have no patterns, only names."""
    return bool(matching(pattern, [other])) if scope == "queue" else other == pattern


def _nothing_paused(scope: Scope, pattern: str) -> str:
    if scope == "queue":
        return f"Nothing that matches {pattern!r} is paused: see `tarry pauses`."
    return f"There is no pause of {describe_target(scope, pattern)}: see `tarry pauses`."


async def _meant(context: OperatorContext, scope: Scope, pattern: str) -> list[Holder]:
    """What is to be paused now. A policy must be known, as it may be mistyped; job types are not known in advance."""
    if scope == "policy":
        await _require_policy(context, pattern)
    if scope != "queue":
        gate = gate_of(scope, pattern)
        return [] if gate is None else [gate]
    return [Destination.of_label(label) for label in await matching_destinations(context, pattern)]


async def _require_policy(context: OperatorContext, name: str) -> None:
    """A policy that is no longer in the files can be paused while it has open retries."""
    files = context.files
    if not isinstance(files, Topology) or any(policy.name == name for policy in files.policies):
        return
    row = await context.store.one("has_open_of_policy", policy=name)
    if row and row[0]:
        return
    known = ", ".join(sorted(policy.name for policy in files.policies))
    raise NotFoundError(f"There is no policy {name!r}, and no open retry has one. The policies are {known}.")


async def _without_key(context: OperatorContext, scope: Scope, pattern: str) -> int:
    if gate_of(scope, pattern) is None:
        return 0
    policy = pattern if scope == "policy" else None
    row = await context.store.one("without_gate_keys", policy=policy, most=MOST_COUNTED)
    return int(row[0]) if row else 0


async def _hold_all(
    context: OperatorContext, holders: list[Holder], hold: Callable[[OperatorContext, Holder], Awaitable[None]]
) -> dict[Holder, BrokerError]:
    """Pauses the destinations; returns those that could not be paused, and why."""
    problems: dict[Holder, BrokerError] = {}
    for holder in holders:
        try:
            await hold(context, holder)
        except BrokerError as error:
            problems[holder] = error
    return problems


def _is_refusal(problem: BrokerError) -> bool:
    """If the broker became unreachable, the outcome is unknown: the request stays, and the service resumes it."""
    return not isinstance(problem, BrokerUnreachableError)


async def _undo(context: OperatorContext, pause_id: str, holders: list[Holder]) -> None:
    """Ends a pause that the broker refused entirely; destinations that another pause matches stay paused."""
    await context.store.change("end_pauses", ids=[pause_id], by="refused by the broker")
    others = await active_pauses(context)
    for holder in holders:
        if not any(one.wants(holder.label) for one in others):
            await undo_pause(context, holder)


ALL = "all"
"""The stage of a release without a canary, or whose canaries have passed."""

NO_SERVICE = "no service is releasing its messages: they wait until one runs"


@dataclass(frozen=True, slots=True)
class PauseView:
    """A pause, as it is shown."""

    pattern: str
    actor: str
    reason: str | None
    at: datetime
    until: datetime | None
    scope: Scope = "queue"
    at_end: ReleaseOptions | None = None
    """How messages are released at `until`; null if there is none."""

    @property
    def target(self) -> str:
        return describe_target(self.scope, self.pattern)


@dataclass(frozen=True, slots=True)
class DestinationPause:
    """One destination, policy or job type, or all automatic retries: held or being released."""

    destination: str
    """A queue, `exchange:NAME`, `policy NAME`, `job type NAME`, or `automatic retries`."""
    state: str
    """`holding`, `releasing`, `throttled`, or `canary_failed`."""
    since: datetime
    depth: int | None
    """Messages in its held queue; None if the broker gave no answer."""
    held: int
    """Held retries, according to the audit."""
    released: int
    rate: int | None
    stage: str
    """The stage of a release: the current canary, or `all`; empty if it is not being released."""
    eta_s: float | None
    """Seconds until all messages are released; None until all canaries have passed."""
    problem: str | None
    pauses: list[PauseView]
    kind: str = "queue"
    """`queue`, `exchange`, `policy`, `job-type` or `automatic-retries`."""
    name: str = ""
    throttle: int | None = None
    """The most returns a second; null if there is no limit."""
    throttles: list[ThrottleView] = field(default_factory=list)
    """The limits that apply to it; the lowest counts."""

    @property
    def is_destination(self) -> bool:
        return self.kind in ("queue", "exchange")


@dataclass(frozen=True, slots=True)
class Pauses:
    """All of them, and what else is paused."""

    paused_destinations: list[DestinationPause]
    pauses: list[PauseView]
    """All pauses in force, including those that match no destination yet."""
    intake: Intake
    throttles: list[ThrottleView] = field(default_factory=list)
    """All throttles of operators, including those that match no destination yet."""


async def show_pauses(context: OperatorContext) -> Pauses:
    paused_destinations, pauses = await count_paused_destinations(context), await active_pauses(context)
    throttles = [one for one in await active_throttles(context) if not one.is_over]
    shown = [
        replace(
            _held(paused, await _counts(context, paused), pauses),
            throttles=limits(paused.label, throttles, context.files) if paused.throttle is not None else [],
        )
        for paused in paused_destinations
    ]
    limited = [ThrottleView.of(one) for one in throttles]
    return Pauses(shown, [_wish(one) for one in pauses], await read_intake(context), limited)


async def known_destinations(context: OperatorContext, pattern: str = "*") -> list[str]:
    """All matching destinations that are attached, were delivered to before, have open retries, or are paused."""
    paused = {one.label for one in await read_paused_destinations(context) if not is_gate_key(one.label)}
    known = await seen_in_store(context) | paused
    return matching(pattern, known | (await bound_on_broker(context) or set()))


async def _counts(context: OperatorContext, paused: PausedDestination) -> tuple[int | None, int]:
    """Messages in its held queue, None if the broker gave no answer; and how many services release from it."""
    try:
        return await context.binder.counts(context.names.held_queue(paused.holder))
    except BrokerError:
        return None, 0


def _held(paused: PausedDestination, counts: tuple[int | None, int], pauses: list[Pause]) -> DestinationPause:
    depth, consumers = counts
    releasing = paused.state == "releasing"
    stage = _stage(paused) if releasing else ""
    eta = depth / paused.effective_rate if stage == ALL and depth is not None else None
    idle = stage == ALL and depth and not consumers
    return DestinationPause(
        describe_holder(paused.holder),
        "throttled" if stage == ALL and paused.throttle is not None else paused.state,
        paused.since,
        depth,
        paused.held or 0,
        paused.released,
        paused.effective_rate if releasing else None,
        stage,
        eta,
        paused.problem or (NO_SERVICE if idle else None),
        [_wish(one) for one in pauses if one.wants(paused.label)],
        paused.kind,
        paused.name,
        paused.throttle,
    )


def _stage(paused: PausedDestination) -> str:
    sizes = canaries_of(paused)
    if not paused.canary or paused.stage >= len(sizes):
        return ALL
    return f"canary of {sizes[paused.stage]}"


def _wish(pause: Pause) -> PauseView:
    at_end = pause.at_end if pause.until is not None and pause.scope != "stuck-recovery" else None
    return PauseView(pause.pattern, pause.actor, pause.reason, pause.at, pause.until, pause.scope, at_end)
