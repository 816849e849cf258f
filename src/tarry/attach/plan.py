"""Plans what attaching one queue or exchange would change. Pure: takes a snapshot and returns a plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tarry.attach import obstacles
from tarry.attach.findings import AttachFinding, Level, note, refusal, warning
from tarry.attach.merge import DLX, Merged, MergeOptions, Situation, merge, merge_fallback
from tarry.attach.own_policy import (
    PolicyRecord,
    apply_to,
    belongs_to,
    fallback_name,
    pattern_for,
    policy_name,
)
from tarry.attach.snapshot import BrokerSnapshot, UserQueue
from tarry.core.names import Destination
from tarry.core.policy import Policy
from tarry.topology.blueprint import destination_blueprint
from tarry.topology.broker_policies import BrokerPolicy, policy_for
from tarry.topology.objects import Blueprint

LOWEST_PRIORITY = 2


@dataclass(frozen=True, slots=True)
class AttachPlan:
    """All changes for one destination, and all findings about it."""

    destination: Destination
    missing: Blueprint
    """The relay queue, held queue and bindings that do not exist yet."""
    remarks: tuple[AttachFinding, ...]
    queue: UserQueue | None = None
    policy: BrokerPolicy | None = None
    """The policy to set; None for an exchange, and for a refusal."""
    policy_changes: bool = False
    """Also True if the policy exists on the broker but is not in effect."""
    fallback: BrokerPolicy | None = None
    """The policy that applies if the queue is declared again as another type."""
    fallback_changes: bool = False

    @property
    def refused(self) -> bool:
        return any(remark.level is Level.REFUSAL for remark in self.remarks)

    @property
    def nothing_to_do(self) -> bool:
        return not (self.policy_changes or self.fallback_changes or len(self.missing))

    def texts(self, level: Level) -> list[str]:
        return [remark.text for remark in self.remarks if remark.level is level]


def plan_queue(
    survey: BrokerSnapshot,
    name: str,
    options: MergeOptions,
    failures: tuple[str, ...],
    destinations: tuple[str, ...] = ("*",),
    *,
    policies: tuple[Policy, ...] = (),
) -> AttachPlan:
    """`failures`, `destinations` and `policies` are the topology's."""
    destination = Destination("queue", name)
    queue = survey.queues.get(name)
    if queue is None:
        return _refused(destination, refusal("there is no such queue in this vhost: declare it first"))
    at = situation(survey, queue)
    ours = live_policy(survey, name)
    merged = merge(at, kept(options, ours, at.base))
    remarks = [*obstacles.refusals(at, survey.names, destinations), *_other_installation(survey, name), *merged.remarks]
    if any(remark.level is Level.REFUSAL for remark in remarks):
        return AttachPlan(destination, Blueprint((), (), ()), tuple(remarks), queue)
    remarks += obstacles.warnings(at, failures)
    remarks += obstacles.installation(at, len(survey.live.bindings_from(survey.names.deliver)))
    remarks += obstacles.priorities(at, policies)
    remarks += _ties(survey, at)
    policy = _policy(survey, queue, merged, ours)
    other = as_other_type(survey, at)
    fallback = fallback_policy(survey, other, options, policy.priority)
    if fallback is None:
        remarks.append(_no_fallback(other))
    return AttachPlan(
        destination,
        missing_parts(survey, destination),
        tuple(remarks),
        queue,
        policy,
        policy_changes=policy != ours or queue.policy != policy.name,
        fallback=fallback,
        fallback_changes=fallback != live_fallback(survey, name),
    )


def situation(survey: BrokerSnapshot, queue: UserQueue) -> Situation:
    return Situation(
        queue=queue,
        intake=survey.names.intake,
        version=survey.version,
        base=users_policy(survey, queue),
        operator=policy_for(queue.as_queue(), survey.operator_policies),
    )


def users_policy(survey: BrokerSnapshot, queue: UserQueue, chosen: BrokerPolicy | None = None) -> BrokerPolicy | None:
    """The policy that the broker would apply without tarry's: as the broker reports it, otherwise by the same rules.

    Of two with equal priority it is `chosen`, or the one chosen when the queue was attached.
    """
    others = survey.users_policies
    if queue.policy is not None and queue.policy in others:
        return others[queue.policy]
    record = record_of(live_policy(survey, queue.name))
    before = chosen or (others.get(record.base or "") if record else None)
    # A pattern that Python cannot parse would be assumed to match; it counts only if the broker reports it, or did so
    # at attach.
    known = survey.readable_policies
    unreadable = () if before is None or before in known else (before,)
    strongest = policy_for(queue.as_queue(), (*known, *unreadable))
    if before is None or strongest is None or not before.fits(queue.as_queue()):
        return strongest
    if before.priority == strongest.priority:
        return before
    return strongest


def as_other_type(survey: BrokerSnapshot, at: Situation) -> Situation:
    """The situation if the queue were declared again as the other type that can be attached."""
    queue = _retyped(at.queue)
    operator = policy_for(queue.as_queue(), survey.operator_policies)
    return replace(at, queue=queue, base=users_policy(survey, queue, at.base), operator=operator)


def _retyped(queue: UserQueue) -> UserQueue:
    return replace(queue, type="classic" if queue.type == "quorum" else "quorum", policy=None)


def fallback_policy(
    survey: BrokerSnapshot, other: Situation, options: MergeOptions, priority: int
) -> BrokerPolicy | None:
    """The fallback, with a priority one below tarry's policy.

    None if the user's own policy for the other type sends its dead letters elsewhere.
    """
    name = other.queue.name
    ours = live_fallback(survey, name) or live_policy(survey, name)
    merged = merge_fallback(other, kept(options, ours, other.base))
    if merged.refused:
        return None
    return BrokerPolicy(
        name=fallback_name(name),
        pattern=pattern_for(name, merged.record),
        apply_to=apply_to(other.queue.type, survey.version),
        priority=priority - 1,
        definition=merged.definition,
    )


def _no_fallback(other: Situation) -> AttachFinding:
    name, exchange = (other.base.name, other.base.definition.get(DLX)) if other.base else ("", None)
    return note(
        f"if it is declared again as a {other.queue.type} queue, policy {name!r} sends its dead letters to "
        f"{exchange!r} and not to tarry (--replace-dead-letter changes that)"
    )


def live_policy(survey: BrokerSnapshot, queue: str) -> BrokerPolicy | None:
    """Tarry's policy for a queue as it exists on the broker, or None."""
    return survey.own_policies.get(policy_name(queue))


def live_fallback(survey: BrokerSnapshot, queue: str) -> BrokerPolicy | None:
    return survey.own_policies.get(fallback_name(queue))


def record_of(policy: BrokerPolicy | None) -> PolicyRecord | None:
    return None if policy is None else PolicyRecord.read(policy.pattern)


def _policy(survey: BrokerSnapshot, queue: UserQueue, merged: Merged, ours: BrokerPolicy | None) -> BrokerPolicy:
    """Tarry's policy, with a priority above every policy that could apply to either type of the queue.

    There is room for the fallback below it. A priority that is high enough already stays unchanged.
    """
    others = survey.users_policies.values()
    matching = (*_matching(queue, others), *_matching(_retyped(queue), others))
    needed = max((policy.priority + 2 for policy in matching), default=LOWEST_PRIORITY)
    return BrokerPolicy(
        name=policy_name(queue.name),
        pattern=pattern_for(queue.name, merged.record),
        apply_to=apply_to(queue.type, survey.version),
        priority=max(needed, LOWEST_PRIORITY, ours.priority if ours else needed),
        definition=merged.definition,
    )


def _matching(queue: UserQueue, policies: Iterable[BrokerPolicy]) -> list[BrokerPolicy]:
    thing = queue.as_queue()
    return [policy for policy in policies if policy.fits(thing)]


def kept(options: MergeOptions, ours: BrokerPolicy | None, base: BrokerPolicy | None) -> MergeOptions:
    """A flag that is not repeated keeps what an earlier attach set with it."""
    record = record_of(ours)
    if ours is None or record is None:
        return options
    own = {key: ours.definition.get(key) for key in record.own}
    return MergeOptions(
        delivery_limit=options.delivery_limit or own.get("delivery-limit"),
        consumer_timeout_ms=options.consumer_timeout_ms or own.get("consumer-timeout"),
        replace_dead_letter=options.replace_dead_letter or record.made_from(base),
    )


def missing_parts(survey: BrokerSnapshot, destination: Destination, *, in_lanes: bool = True) -> Blueprint:
    """What a destination lacks; without `in_lanes`, only what it needs: in a lane where it has no relay queue of its
    own, it uses the one that destinations share.
    """
    names, live = survey.names, survey.live
    lanes = sorted(lane for name in live.exchanges if (lane := names.lane_of_exchange(name)) is not None)
    wanted = destination_blueprint(names, destination, dict.fromkeys(lanes) if in_lanes else ())
    return Blueprint(
        exchanges=(),
        queues=tuple(queue for queue in wanted.queues if queue.name not in survey.live.queues),
        bindings=tuple(binding for binding in wanted.bindings if binding not in survey.live.bindings),
    )


def _other_installation(survey: BrokerSnapshot, queue: str) -> Iterable[AttachFinding]:
    for policy in survey.policies:
        named = policy.name in (policy_name(queue), fallback_name(queue))
        if named and not belongs_to(policy, survey.names.intake):
            intake = policy.definition.get(DLX)
            yield refusal(
                f"policy {policy.name!r} exists and dead-letters to {intake!r}: detach it where it was attached "
                "(tarry detach, with that installation's topology), or rename it if it is your own"
            )


def _ties(survey: BrokerSnapshot, at: Situation) -> Iterable[AttachFinding]:
    """The broker does not define which of two policies of equal priority applies; any change may switch it."""
    if at.base is None:
        return
    others = (policy for policy in survey.policies if policy.name not in survey.own_policies)
    equals = [policy.name for policy in _matching(at.queue, others) if policy.priority == at.base.priority]
    rivals = sorted(name for name in equals if name != at.base.name)
    if rivals:
        yield warning(
            f"policies {at.base.name!r} and {', '.join(map(repr, rivals))} match with the same priority: the keys of "
            f"{at.base.name!r} are taken over; give one of them a higher priority"
        )


def _refused(destination: Destination, remark: AttachFinding) -> AttachPlan:
    return AttachPlan(destination, Blueprint((), (), ()), (remark,))
