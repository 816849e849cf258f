"""What is attached, and whether it still is what attach made of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tarry.attach.merge import Options, merge
from tarry.attach.own_policy import belongs_to, policy_name, queue_of
from tarry.attach.plan import kept, live_policy, missing_parts, record_of, situation
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
    """Rejects may not reach tarry: the broker applies another policy."""
    BINDING_GONE = "binding gone"
    """Retries do not find their way home by themselves."""
    DRIFTED = "drifted"
    """The user's own policy, or ours, has changed since."""


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
    if live_policy(survey, queue.name) is None:
        yield State.POLICY_GONE, f"policy {policy_name(queue.name)} is not there; {again}"
    elif queue.policy != policy_name(queue.name):
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
        yield State.DRIFTED, f"policy {ours.name} was edited since it was attached; {again}"


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
