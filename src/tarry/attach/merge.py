"""Which keys a queue's policy gets: the user's own, and ours on top. Pure.

One key that a queue's type does not know voids the whole policy for it, the user's keys included. So a classic queue
gets the dead-letter exchange and nothing else of ours; most of what follows is for quorum queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tarry.attach.own_policy import Record
from tarry.attach.remarks import Level, Remark, note, refusal, warning
from tarry.attach.survey import UserQueue
from tarry.core.durations import humanise
from tarry.topology.policies import BrokerPolicy

DELIVERY_LIMIT = 20
"""Deliveries of one message that end without an ack or a reject; what a 4.x broker takes by itself."""

CONSUMER_TIMEOUT_SINCE = (3, 12)
DLX, DLX_KEY, STRATEGY, OVERFLOW = (
    "dead-letter-exchange",
    "dead-letter-routing-key",
    "dead-letter-strategy",
    "overflow",
)
LIMITS = ("max-length", "max-length-bytes")


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for. None keeps what an earlier attach set."""

    delivery_limit: int | None = None
    consumer_timeout_ms: int | None = None
    replace_dead_letter: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """One queue and all that bears on it."""

    queue: UserQueue
    intake: str
    version: tuple[int, ...]
    base: BrokerPolicy | None = None
    """The user's policy that would apply if ours did not."""
    operator: BrokerPolicy | None = None

    def setting(self, key: str) -> Any:
        """As the broker resolves it without us; where several limits are set, any of them will do."""
        for found in (self.queue.argument(key), _get(self.operator, key), _get(self.base, key)):
            if found is not None:
                return found
        return None

    @property
    def limited(self) -> bool:
        return any(self.setting(key) is not None for key in LIMITS)


@dataclass(frozen=True, slots=True)
class Merged:
    """The definition of our policy, and which of its keys are ours."""

    definition: Mapping[str, Any]
    record: Record
    remarks: tuple[Remark, ...]

    @property
    def refused(self) -> bool:
        return any(remark.level is Level.REFUSAL for remark in self.remarks)


@dataclass(slots=True)
class _Draft:
    definition: dict[str, Any]
    own: list[str] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)

    def put(self, key: str, value: Any) -> None:
        self.definition[key] = value
        self.own.append(key)


def merge(at: Situation, options: Options) -> Merged:
    draft = _Draft(dict(at.base.definition) if at.base else {})
    _dead_letter_exchange(draft, at, options)
    if at.queue.type == "quorum":
        _dead_letter_strategy(draft, at)
        _delivery_limit(draft, at, options)
    _consumer_timeout(draft, at, options)
    return _merged(draft, at)


def merge_fallback(at: Situation, options: Options) -> Merged:
    """Only what brings a reject to tarry: the key that every type of queue knows."""
    draft = _Draft(dict(at.base.definition) if at.base else {})
    _dead_letter_exchange(draft, at, options)
    return _merged(draft, at)


def _merged(draft: _Draft, at: Situation) -> Merged:
    record = Record.of(at.base, tuple(sorted(draft.own)))
    taken = sorted(draft.definition.keys() - set(record.own))
    if at.base is not None and taken:
        draft.remarks.append(note(f"takes over {', '.join(taken)} from policy {at.base.name!r}"))
    return Merged(draft.definition, record, tuple(draft.remarks))


def _dead_letter_exchange(draft: _Draft, at: Situation, options: Options) -> None:
    before, key = draft.definition.get(DLX), draft.definition.get(DLX_KEY)
    policy = at.base.name if at.base else ""
    if before not in (None, at.intake):
        if not options.replace_dead_letter:
            draft.remarks.append(
                refusal(
                    f"policy {policy!r} sends its dead letters to exchange {before!r}, which would get none from this "
                    "queue any more: repeat with --replace-dead-letter if that is wanted (detach brings it back)"
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
    """At-least-once only works with reject-publish, so it is set only where that changes nothing for publishers."""
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
            "which would turn publishers away (set it in your own policy if that suits them)"
        )
    if at.queue.argument(OVERFLOW) is not None or _get(at.operator, OVERFLOW) is not None:
        return f"its overflow is fixed to {overflow}, and at-least-once needs reject-publish"
    return None


def _delivery_limit(draft: _Draft, at: Situation, options: Options) -> None:
    present = at.setting("delivery-limit")
    if present is None:
        draft.put("delivery-limit", options.delivery_limit or DELIVERY_LIMIT)
    elif options.delivery_limit not in (None, present):
        draft.remarks.append(warning(f"has a delivery-limit of {present} already, which stays"))
    elif isinstance(present, int) and present < 0:
        draft.remarks.append(
            warning("has no delivery limit (-1): a message that kills its consumer comes back for ever")
        )


def _consumer_timeout(draft: _Draft, at: Situation, options: Options) -> None:
    wanted = options.consumer_timeout_ms
    if wanted is None:
        return
    present = at.setting("consumer-timeout")
    if at.version < CONSUMER_TIMEOUT_SINCE:
        draft.remarks.append(
            warning(
                "consumer timeout not set: this broker takes it in no policy before 3.12; "
                "set consumer_timeout in rabbitmq.conf"
            )
        )
    elif present is not None:
        draft.remarks.append(warning(f"has a consumer-timeout of {humanise(present)} already, which stays"))
    else:
        draft.put("consumer-timeout", wanted)


def _get(policy: BrokerPolicy | None, key: str) -> Any:
    return None if policy is None else policy.definition.get(key)
