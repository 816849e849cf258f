"""What is attached, and whether it still is what attach made of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tarry.attach.merge import DLX, Options, Situation, merge
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
from tarry.attach.survey import Survey, UserQueue
from tarry.core.names import Destination
from tarry.topology.policies import BrokerPolicy


class State(StrEnum):
    """How an attachment stands; the first that applies is told."""

    OK = "ok"
    GONE = "gone"
    """The queue or exchange itself is not there any more."""
    POLICY_GONE = "policy gone"
    """Rejects do not reach tarry: our policy was deleted."""
    OVERRIDDEN = "overridden"
    """Rejects may not reach tarry: the broker applies another policy, or an argument of the queue."""
    UNCONFIRMED = "unconfirmed"
    """Rejects may not reach tarry: the write of our policy was cut off, and the broker may not apply it."""
    TYPE_CHANGED = "type changed"
    """The queue was declared again as another type; rejects reach tarry by the fallback policy."""
    BINDING_GONE = "binding gone"
    """Retries do not find their way home by themselves."""
    DRIFTED = "drifted"
    """The user's own policy, or ours, has changed since."""

    @property
    def may_lose_rejects(self) -> bool:
        return self in (State.POLICY_GONE, State.OVERRIDDEN, State.UNCONFIRMED)


@dataclass(frozen=True, slots=True)
class Attachment:
    """One destination that was attached."""

    destination: Destination
    state: State
    detail: str = ""
    """What is wrong, and the command that mends it."""
    base: str | None = None
    """The user's policy whose keys ours carries."""


def attachments(survey: Survey) -> list[Attachment]:
    return [attachment(survey, destination) for destination in sorted(attached(survey), key=lambda found: found.label)]


def attached(survey: Survey) -> set[Destination]:
    """Whatever has a policy of ours or a relay of its own. A mere way home may have been bound on first sight."""
    found = {
        Destination("queue", queue_of(policy)) for policy in survey.policies if belongs_to(policy, survey.names.intake)
    }
    return found | set(_with_relay(survey)) | set(_exchanges_without_relay(survey))


def attachment(survey: Survey, destination: Destination) -> Attachment:
    record = record_of(live_policy(survey, destination.name)) if destination.kind == "queue" else None
    base = record.base if record else None
    for state, detail in _findings(survey, destination):
        return Attachment(destination, state, detail, base)
    return Attachment(destination, State.OK, base=base)


def _findings(survey: Survey, destination: Destination) -> Iterator[tuple[State, str]]:
    name = destination.name
    flag = "--exchange " if destination.kind == "exchange" else ""
    again = f"run: tarry attach {flag}{name}"
    there = survey.queues if destination.kind == "queue" else survey.live.exchanges
    if name not in there:
        yield (
            State.GONE,
            f"no such {destination.kind} any more; declare it and {again}, or run: tarry detach {flag}{name}",
        )
        return
    if destination.kind == "queue":
        yield from _policy_findings(survey, survey.queues[name], again)
    missing = missing_parts(survey, destination)
    if len(missing):
        parts = [*(f"queue {queue.name}" for queue in missing.queues), *map(str, missing.bindings)]
        yield State.BINDING_GONE, f"missing: {', '.join(parts)}; {again}"
    if destination.kind == "queue":
        yield from _drift(survey, survey.queues[name], again)


def _policy_findings(survey: Survey, queue: UserQueue, again: str) -> Iterator[tuple[State, str]]:
    ours, record = live_policy(survey, queue.name), record_of(live_policy(survey, queue.name))
    if ours is None or record is None:
        yield State.POLICY_GONE, f"policy {policy_name(queue.name)} is not there; {again}"
    elif queue.argument(DLX) not in (None, survey.names.intake):
        argument = f"its argument x-dead-letter-exchange={queue.argument(DLX)!r}"
        yield State.OVERRIDDEN, f"{argument} beats the policy: declare it again without that and {again}"
    elif not record.confirmed:
        yield State.UNCONFIRMED, f"the broker may have recorded policy {ours.name} and not applied it; {again}"
    elif queue.policy == fallback_name(queue.name):
        yield State.TYPE_CHANGED, f"it is a {queue.type} queue now; to set the policy for that, {again}"
    elif queue.policy != ours.name:
        applied = f"policy {queue.policy!r}" if queue.policy else "no policy at all"
        yield State.OVERRIDDEN, f"the broker applies {applied} instead of ours; {again}"


def _drift(survey: Survey, queue: UserQueue, again: str) -> Iterator[tuple[State, str]]:
    ours = live_policy(survey, queue.name)
    record = record_of(ours)
    if ours is None or record is None:
        return
    at = situation(survey, queue)
    if not record.made_from(at.base):
        yield State.DRIFTED, f"{_change(record.base, at.base)}; to take that over, {again}"
    elif dict(merge(at, kept(Options(), ours, at.base)).definition) != dict(ours.definition):
        yield State.DRIFTED, f"policy {ours.name} was edited since it was attached, or is for another type; {again}"
    elif differs(_wanted_fallback(survey, at, ours.priority), live_fallback(survey, queue.name)):
        name = fallback_name(queue.name)
        yield State.DRIFTED, f"policy {name} is missing, or not what it would be now; {again}"


def _wanted_fallback(survey: Survey, at: Situation, priority: int) -> BrokerPolicy | None:
    return fallback_policy(survey, as_other_type(survey, at), Options(), priority)


def differs(wanted: BrokerPolicy | None, live: BrokerPolicy | None) -> bool:
    """By what they do; which policy they were made from does not matter."""
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
    return f"your policy {now.name!r} has taken the place of {before!r}"


def _with_relay(survey: Survey) -> Iterator[Destination]:
    start = f"{survey.names.relay}."
    for binding in survey.live.bindings_from(survey.names.relay):
        label = binding.destination.removeprefix(start)
        candidates = (Destination("queue", label), Destination("exchange", label.removeprefix("exchange:")))
        yield from (candidate for candidate in candidates if candidate.key == binding.key)


def _exchanges_without_relay(survey: Survey) -> Iterator[Destination]:
    for binding in survey.live.bindings_from(survey.names.deliver):
        candidate = Destination("exchange", binding.destination)
        if binding.destination_type == "exchange" and not candidate.can_have_relay and candidate.key == binding.key:
            yield candidate
