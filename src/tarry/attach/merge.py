"""Merges the keys of a queue's policy: the user's own keys, with tarry's on top. Pure.

A key that a queue's type does not support makes the whole policy void for it, including the user's keys. So a classic
queue gets only the dead-letter exchange from tarry; most of what follows is for quorum queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tarry.attach.findings import AttachFinding, Level, note, refusal, warning
from tarry.attach.own_policy import PolicyRecord
from tarry.attach.snapshot import UserQueue
from tarry.core.durations import humanise
from tarry.topology.broker_policies import BrokerPolicy

DELIVERY_LIMIT = 20
"""Deliveries of one message that end without an ack or a reject; the default of a 4.x broker."""

CONSUMER_TIMEOUT_SINCE = (3, 12)
"""The first series that takes a consumer timeout in a policy."""
NO_CLASSIC_TIMEOUT_SINCE = (4, 3)
"""From here on only quorum queues have a consumer timeout: they cancel the consumer, and the delivery limit does not
count it. Before, the node closed the channel of any consumer."""
TIMEOUT = "consumer-timeout"
DLX, DLX_KEY, STRATEGY, OVERFLOW = (
    "dead-letter-exchange",
    "dead-letter-routing-key",
    "dead-letter-strategy",
    "overflow",
)
LIMITS = ("max-length", "max-length-bytes")


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """What the user asked for. An option that is not set keeps what an earlier attach set."""

    delivery_limit: int | None = None
    consumer_timeout_ms: int | None = None
    replace_dead_letter: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """One queue and everything that affects its policy."""

    queue: UserQueue
    intake: str
    version: tuple[int, ...]
    base: BrokerPolicy | None = None
    """The user's policy that would apply without tarry's."""
    operator: BrokerPolicy | None = None

    def setting(self, key: str) -> Any:
        """The value that the broker would use without tarry's policy; of several limits, any may be returned."""
        for found in (self.queue.argument(key), _get(self.operator, key), _get(self.base, key)):
            if found is not None:
                return found
        return None

    @property
    def limited(self) -> bool:
        return any(self.setting(key) is not None for key in LIMITS)


@dataclass(frozen=True, slots=True)
class Merged:
    """The definition of tarry's policy, and which of its keys are tarry's own."""

    definition: Mapping[str, Any]
    record: PolicyRecord
    remarks: tuple[AttachFinding, ...]

    @property
    def refused(self) -> bool:
        return any(remark.level is Level.REFUSAL for remark in self.remarks)


@dataclass(slots=True)
class _Draft:
    definition: dict[str, Any]
    own: list[str] = field(default_factory=list)
    remarks: list[AttachFinding] = field(default_factory=list)

    def put(self, key: str, value: Any) -> None:
        self.definition[key] = value
        self.own.append(key)


def merge(at: Situation, options: MergeOptions) -> Merged:
    draft = _Draft(dict(at.base.definition) if at.base else {})
    _dead_letter_exchange(draft, at, options)
    if at.queue.type == "quorum":
        _dead_letter_strategy(draft, at)
        _delivery_limit(draft, at, options)
    _consumer_timeout(draft, at, options)
    return _merged(draft, at)


def merge_fallback(at: Situation, options: MergeOptions) -> Merged:
    """Only the key that sends a reject to tarry; every type of queue supports it."""
    draft = _Draft(dict(at.base.definition) if at.base else {})
    _dead_letter_exchange(draft, at, options)
    return _merged(draft, at)


def _merged(draft: _Draft, at: Situation) -> Merged:
    record = PolicyRecord.of(at.base, tuple(sorted(draft.own)))
    taken = sorted(draft.definition.keys() - set(record.own))
    if at.base is not None and taken:
        draft.remarks.append(note(f"takes over {', '.join(taken)} from policy {at.base.name!r}"))
    return Merged(draft.definition, record, tuple(draft.remarks))


def _dead_letter_exchange(draft: _Draft, at: Situation, options: MergeOptions) -> None:
    before, key = draft.definition.get(DLX), draft.definition.get(DLX_KEY)
    policy = at.base.name if at.base else ""
    if before not in (None, at.intake):
        if not options.replace_dead_letter:
            draft.remarks.append(
                refusal(
                    f"policy {policy!r} sends its dead letters to exchange {before!r}, which would get none from "
                    "this queue: repeat with --replace-dead-letter if that is wanted (detach restores it)"
                )
            )
            return
        draft.remarks.append(note(f"dead letters go to {at.intake}, no longer to {before!r} of policy {policy!r}"))
    if key is not None:
        del draft.definition[DLX_KEY]
        draft.remarks.append(
            warning(f"dead-letter-routing-key {key!r} of policy {policy!r} is left out: messages keep their own key")
        )
    draft.put(DLX, at.intake)


def _dead_letter_strategy(draft: _Draft, at: Situation) -> None:
    """At-least-once requires reject-publish, so it is set only where that changes nothing for publishers."""
    if hindrance := _hindrance(at):
        draft.remarks.append(
            warning(f"dead-letters at most once, so a reject may be lost if the broker stops just then: {hindrance}")
        )
        return
    for key, value in ((STRATEGY, "at-least-once"), (OVERFLOW, "reject-publish")):
        if at.queue.argument(key) is None and draft.definition.get(key) != value:
            draft.put(key, value)


def _hindrance(at: Situation) -> str | None:
    strategy, overflow = at.setting(STRATEGY), at.setting(OVERFLOW)
    if strategy not in (None, "at-least-once"):
        return f"its dead-letter-strategy is {strategy}"
    if overflow == "reject-publish":
        return None
    if at.limited:
        return (
            f"it has a length limit with overflow {overflow or 'drop-head'}, and at-least-once needs reject-publish, "
            "which would refuse publishes (set it in your own policy if your publishers can handle that)"
        )
    if at.queue.argument(OVERFLOW) is not None or _get(at.operator, OVERFLOW) is not None:
        return f"its overflow is fixed to {overflow}, and at-least-once needs reject-publish"
    return None


def _delivery_limit(draft: _Draft, at: Situation, options: MergeOptions) -> None:
    present = at.setting("delivery-limit")
    if present is None:
        draft.put("delivery-limit", options.delivery_limit or DELIVERY_LIMIT)
    elif options.delivery_limit not in (None, present):
        draft.remarks.append(warning(f"has a delivery-limit of {present} already, which stays"))
    elif isinstance(present, int) and present < 0:
        draft.remarks.append(
            warning("has no delivery limit (-1): a message that crashes its consumer is redelivered forever")
        )


def _consumer_timeout(draft: _Draft, at: Situation, options: MergeOptions) -> None:
    """Sets the timeout where the broker takes one, and says after how long a hung message comes back."""
    wanted, present = options.consumer_timeout_ms, at.setting(TIMEOUT)
    if at.queue.type != "quorum" and at.version >= NO_CLASSIC_TIMEOUT_SINCE:
        asked = "consumer timeout not set: " if wanted else ""
        draft.remarks.append(
            warning(
                f"{asked}from 4.3 a classic queue has no consumer timeout, so a message whose consumer hangs comes "
                "back only when that consumer disconnects; a quorum queue has one, and tarry's clients report hangs"
            )
        )
        return
    if at.version < CONSUMER_TIMEOUT_SINCE:
        if wanted:
            draft.remarks.append(
                warning(
                    "consumer timeout not set: before 3.12 a broker accepts it in no policy; "
                    "set consumer_timeout in rabbitmq.conf"
                )
            )
        present = None
    elif present is not None:
        if wanted not in (None, present):
            draft.remarks.append(warning(f"has a consumer-timeout of {humanise(present)} already, which stays"))
    elif wanted is not None:
        draft.put(TIMEOUT, wanted)
        present = wanted
    draft.remarks.append(note(_comes_back(at, present)))


def _comes_back(at: Situation, timeout_ms: Any) -> str:
    after = (
        humanise(timeout_ms)
        if isinstance(timeout_ms, int)
        else "consumer_timeout in rabbitmq.conf, by default 30 minutes"
    )
    if at.version >= NO_CLASSIC_TIMEOUT_SINCE:
        return f"a message whose consumer hangs comes back after {after}; the broker then cancels that consumer"
    return (
        f"a message whose consumer hangs comes back after {after}, and up to a minute more; the broker then closes the "
        "channel of that consumer"
    )


def _get(policy: BrokerPolicy | None, key: str) -> Any:
    return None if policy is None else policy.definition.get(key)
