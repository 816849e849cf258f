"""Checks of the broker's own policies: a policy meant for other queues can also match tarry's. All pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tarry.topology.broker_policies import BrokerPolicy, PoliciesByName, overridden, policy_for
from tarry.topology.expected import Expected
from tarry.topology.findings import Finding
from tarry.topology.live import Live
from tarry.topology.objects import Queue

HURTS = {
    "message-ttl": "messages would leave early, or be lost",
    "expires": "the queue would be deleted, with all it holds, after that long without use",
    "max-length": "once full it rejects or drops, and a queue that rejects stalls every tier before it",
    "max-length-bytes": "once full it rejects or drops, and a queue that rejects stalls every tier before it",
    "max-in-memory-length": "messages would be read from disk",
    "max-in-memory-bytes": "messages would be read from disk",
    "overflow": "the handling of messages that exceed a limit would change",
    "dead-letter-exchange": "messages would not return to their queue",
    "dead-letter-routing-key": "it replaces the routing key and removes the addresses that route a message back",
    "dead-letter-strategy": "a message could be lost between two queues",
    "delivery-limit": "a message would be dropped after that many deliveries",
}


def check_policies(expected: Expected, live: Live) -> Iterator[Finding]:
    yield from _queues_under(expected, live, live.policies or (), "policy")
    yield from _alternate_exchanges(expected, live)


def check_operator_policies(expected: Expected, live: Live) -> Iterator[Finding]:
    yield from _queues_under(expected, live, live.operator_policies or (), "operator policy")


def check_unread(_expected: Expected, live: Live) -> Iterator[Finding]:
    for what, why in sorted(live.unread.items()):
        yield Finding("unread", (what,), f"not checked: {why}", "run verify as a user who may read them", "note")


@dataclass(frozen=True, slots=True)
class _Effect:
    """How one policy changes one key; equal for all queues that it changes in the same way."""

    policy: BrokerPolicy
    key: str
    now: str

    def problem(self, kind: str, queues: list[Queue]) -> str:
        own = {queue.arguments.as_dict().get(f"x-{self.key}") for queue in queues} - {None}
        instead = f" instead of {own.pop()}" if len(own) == 1 else ""
        which = f"{kind} {self.policy.name!r} (pattern {self.policy.pattern})"
        return f"{which} makes {self.key} {self.now}{instead}: {HURTS[self.key]}"


def _queues_under(expected: Expected, live: Live, policies: Sequence[BrokerPolicy], kind: str) -> Iterator[Finding]:
    """Queues that a policy changes in the same way are reported in one finding."""
    touched: dict[tuple[str, str, str], tuple[_Effect, list[Queue]]] = {}
    by_name = PoliciesByName(policies)
    for name, queue in sorted(live.queues.items()):
        policy = by_name.policy_for(queue) if expected.is_ours(name) else None
        for effect in _effects(queue, policy):
            touched.setdefault((effect.policy.name, effect.key, effect.now), (effect, []))[1].append(queue)
    for effect, queues in touched.values():
        named = tuple(f"queue {queue.name}" for queue in queues)
        yield Finding(kind, named, effect.problem(kind, queues), _mend(expected, kind, effect.policy))


def _effects(queue: Queue, policy: BrokerPolicy | None) -> Iterator[_Effect]:
    if policy is not None:
        for key, (_, now) in overridden(queue, policy).items():
            if key in HURTS:
                yield _Effect(policy, key, str(now))


def _mend(expected: Expected, kind: str, policy: BrokerPolicy) -> str:
    clear = "clear_operator_policy" if kind == "operator policy" else "clear_policy"
    command = f"rabbitmqctl {clear} -p {shlex.quote(expected.vhost)} {shlex.quote(policy.name)}"
    return f"narrow its pattern so that it does not match {expected.names.prefix}*, or: {command}"


def _alternate_exchanges(expected: Expected, live: Live) -> Iterator[Finding]:
    """An exchange's own argument overrides a policy, so only an exchange without an alternate can be given one."""
    touched: dict[str, tuple[BrokerPolicy, list[str]]] = {}
    for exchange in expected.blueprint.exchanges:
        there = live.exchanges.get(exchange.name)
        policy = policy_for(there, live.policies or ()) if there is not None and there.alternate is None else None
        if policy is not None and "alternate-exchange" in policy.definition:
            touched.setdefault(policy.name, (policy, []))[1].append(f"exchange {exchange.name}")
    for policy, exchanges in touched.values():
        problem = (
            f"policy {policy.name!r} (pattern {policy.pattern}) makes alternate-exchange "
            f"{policy.definition['alternate-exchange']}: an unroutable message would no longer be returned"
        )
        yield Finding("policy", tuple(exchanges), problem, _mend(expected, "policy", policy))
