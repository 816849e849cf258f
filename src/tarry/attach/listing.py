"""Lists what is attached, and whether it is still as attach left it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tarry.attach.merge import DLX, MergeOptions, Situation, merge
from tarry.attach.own_policy import belongs_to, fallback_name, policy_name, queue_of
from tarry.attach.plan import (
    as_other_type,
    fallback_policy,
    kept,
    live_fallback,
    live_policy,
    missing_parts,
    record_of,
    situation,
)
from tarry.attach.snapshot import BrokerSnapshot, UserQueue
from tarry.core.names import Destination
from tarry.topology.broker_policies import BrokerPolicy


class AttachmentState(StrEnum):
    """The state of an attachment; if several apply, the first is reported."""

    OK = "ok"
    GONE = "gone"
    """The queue or exchange itself no longer exists."""
    POLICY_GONE = "policy gone"
    """Rejects do not reach tarry: tarry's policy was deleted."""
    OVERRIDDEN = "overridden"
    """Rejects may not reach tarry: the broker applies another policy, or an argument of the queue."""
    UNCONFIRMED = "unconfirmed"
    """Rejects may not reach tarry: the write of tarry's policy was interrupted, and the broker may not apply it."""
    TYPE_CHANGED = "type changed"
    """The queue was declared again as another type; rejects reach tarry through the fallback policy."""
    BINDING_GONE = "binding gone"
    """A binding or queue of the return path is missing: retries do not return by themselves."""
    DRIFTED = "drifted"
    """The user's own policy, or tarry's, has changed since attach."""

    @property
    def may_lose_rejects(self) -> bool:
        return self in (AttachmentState.POLICY_GONE, AttachmentState.OVERRIDDEN, AttachmentState.UNCONFIRMED)


@dataclass(frozen=True, slots=True)
class Attachment:
    """One attached destination."""

    destination: Destination
    state: AttachmentState
    detail: str = ""
    """What is wrong, and the command that fixes it."""
    base: str | None = None
    """The user's policy whose keys tarry's policy includes."""


def attachments(survey: BrokerSnapshot) -> list[Attachment]:
    return [attachment(survey, destination) for destination in sorted(attached(survey), key=lambda found: found.label)]


def attached(survey: BrokerSnapshot) -> set[Destination]:
    """Every destination with a policy of tarry's or its own relay queue.

    A binding on the deliver exchange alone does not count: the router may have created it when it first saw the
    destination.
    """
    found = {
        Destination("queue", queue_of(policy)) for policy in survey.policies if belongs_to(policy, survey.names.intake)
    }
    return found | set(_with_relay(survey)) | set(_exchanges_without_relay(survey))


def attachment(survey: BrokerSnapshot, destination: Destination) -> Attachment:
    record = record_of(live_policy(survey, destination.name)) if destination.kind == "queue" else None
    base = record.base if record else None
    for state, detail in _findings(survey, destination):
        return Attachment(destination, state, detail, base)
    return Attachment(destination, AttachmentState.OK, base=base)


def _findings(survey: BrokerSnapshot, destination: Destination) -> Iterator[tuple[AttachmentState, str]]:
    name = destination.name
    flag = "--exchange " if destination.kind == "exchange" else ""
    again = f"run: tarry attach {flag}{name}"
    there = survey.queues if destination.kind == "queue" else survey.live.exchanges
    if name not in there:
        yield (
            AttachmentState.GONE,
            f"the {destination.kind} no longer exists; declare it and {again}, or run: tarry detach {flag}{name}",
        )
        return
    if destination.kind == "queue":
        yield from _policy_findings(survey, survey.queues[name], again)
    missing = missing_parts(survey, destination, in_lanes=False)
    if len(missing):
        parts = [*(f"queue {queue.name}" for queue in missing.queues), *map(str, missing.bindings)]
        yield AttachmentState.BINDING_GONE, f"missing: {', '.join(parts)}; {again}"
    if destination.kind == "queue":
        yield from _drift(survey, survey.queues[name], again)


def _policy_findings(survey: BrokerSnapshot, queue: UserQueue, again: str) -> Iterator[tuple[AttachmentState, str]]:
    ours, record = live_policy(survey, queue.name), record_of(live_policy(survey, queue.name))
    if ours is None or record is None:
        yield AttachmentState.POLICY_GONE, f"policy {policy_name(queue.name)} does not exist; {again}"
    elif queue.argument(DLX) not in (None, survey.names.intake):
        argument = f"its argument x-dead-letter-exchange={queue.argument(DLX)!r}"
        yield AttachmentState.OVERRIDDEN, f"{argument} overrides the policy: declare it again without that and {again}"
    elif not record.confirmed:
        yield (
            AttachmentState.UNCONFIRMED,
            f"the broker may have recorded policy {ours.name} and not applied it; {again}",
        )
    elif queue.policy == fallback_name(queue.name):
        yield AttachmentState.TYPE_CHANGED, f"it is a {queue.type} queue now; to set the policy for that, {again}"
    elif queue.policy != ours.name:
        applied = f"policy {queue.policy!r}" if queue.policy else "no policy at all"
        yield AttachmentState.OVERRIDDEN, f"the broker applies {applied} instead of tarry's; {again}"


def _drift(survey: BrokerSnapshot, queue: UserQueue, again: str) -> Iterator[tuple[AttachmentState, str]]:
    ours = live_policy(survey, queue.name)
    record = record_of(ours)
    if ours is None or record is None:
        return
    at = situation(survey, queue)
    if not record.made_from(at.base):
        yield AttachmentState.DRIFTED, f"{_change(record.base, at.base)}; to take that over, {again}"
    elif dict(merge(at, kept(MergeOptions(), ours, at.base)).definition) != dict(ours.definition):
        yield (
            AttachmentState.DRIFTED,
            f"policy {ours.name} was edited since it was attached, or is for another type; {again}",
        )
    elif differs(_wanted_fallback(survey, at, ours.priority), live_fallback(survey, queue.name)):
        name = fallback_name(queue.name)
        yield AttachmentState.DRIFTED, f"policy {name} is missing, or not what it would be now; {again}"


def _wanted_fallback(survey: BrokerSnapshot, at: Situation, priority: int) -> BrokerPolicy | None:
    return fallback_policy(survey, as_other_type(survey, at), MergeOptions(), priority)


def differs(wanted: BrokerPolicy | None, live: BrokerPolicy | None) -> bool:
    """Compares what the policies do; the policy that they were made from does not matter."""
    if wanted is None or live is None:
        return wanted is not live
    return (dict(wanted.definition), wanted.apply_to) != (dict(live.definition), live.apply_to)


def _change(before: str | None, now: BrokerPolicy | None) -> str:
    if now is None:
        return f"your policy {before!r} no longer applies to it"
    if before is None:
        return f"your policy {now.name!r} would apply to it now"
    if before == now.name:
        return f"your policy {before!r} has changed since it was attached"
    return f"your policy {now.name!r} has replaced {before!r}"


def _with_relay(survey: BrokerSnapshot) -> Iterator[Destination]:
    """The binding's key tells a queue whose name starts with `exchange:` from an exchange. Queues of webhooks are not
    listed: the topology attaches them.
    """
    for binding in survey.live.bindings_from(survey.names.relay):
        label = survey.names.destination_label(binding.destination) or binding.destination
        candidates = {Destination("queue", label), Destination.of_label(label)}
        if survey.names.is_users(label):
            yield from (candidate for candidate in candidates if candidate.key == binding.key)


def _exchanges_without_relay(survey: BrokerSnapshot) -> Iterator[Destination]:
    for binding in survey.live.bindings_from(survey.names.deliver):
        candidate = Destination("exchange", binding.destination)
        if binding.destination_type == "exchange" and not candidate.can_have_relay and candidate.key == binding.key:
            yield candidate
