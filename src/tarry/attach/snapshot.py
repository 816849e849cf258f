"""A snapshot of the broker for attach: read once, and the basis of every decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from tarry.amqp.management import Management
from tarry.attach.own_policy import belongs_to, is_own, is_readable
from tarry.core.names import GATE_KINDS, Names
from tarry.errors import BrokerError, SettingsError, TopologyMismatchError
from tarry.topology.blueprint import first_gate, former_first_gate
from tarry.topology.broker_policies import BrokerPolicy
from tarry.topology.live import Live, read_live
from tarry.topology.objects import Arguments, Binding, Queue


@dataclass(frozen=True, slots=True)
class UserQueue:
    """One queue, with the properties that decide whether and how it can be attached."""

    name: str
    type: str
    durable: bool
    auto_delete: bool
    exclusive: bool
    arguments: Mapping[str, Any]
    policy: str | None
    """The policy that the broker reports as applied."""
    stuck: int = 0
    """Rejects in its dead-letter buffer, some seconds ago: they have left the queue and are not yet anywhere else."""

    @classmethod
    def read(cls, about: Mapping[str, Any]) -> UserQueue:
        return cls(
            name=about["name"],
            type=about.get("type", "classic"),
            durable=bool(about["durable"]),
            auto_delete=bool(about["auto_delete"]),
            exclusive=bool(about.get("exclusive")),
            arguments=about["arguments"],
            policy=about.get("policy") or None,
            stuck=_stuck(about),
        )

    def argument(self, key: str) -> Any:
        """The argument, by the name that the same setting has in a policy."""
        return self.arguments.get(f"x-{key}")

    def as_queue(self) -> Queue:
        """As the type that broker policies are matched against."""
        return Queue(self.name, Arguments((("x-queue-type", self.type),)), durable=self.durable)


def _stuck(about: Mapping[str, Any]) -> int:
    """Rejects in the buffer: the queue's total counts them, but neither ready nor unacknowledged does."""
    total, ready, unacked = (about.get(key) or 0 for key in ("messages", "messages_ready", "messages_unacknowledged"))
    return max(0, int(total) - int(ready) - int(unacked))


@dataclass(frozen=True)
class BrokerSnapshot:
    """One vhost: its snapshot, its queues in more detail, and the names of this installation.

    Ten thousand attached queues have twenty thousand policies, so policies are indexed.
    """

    names: Names
    live: Live
    queues: Mapping[str, UserQueue]

    @property
    def version(self) -> tuple[int, ...]:
        return self.live.version

    @property
    def policies(self) -> tuple[BrokerPolicy, ...]:
        return self.live.policies or ()

    @property
    def operator_policies(self) -> tuple[BrokerPolicy, ...]:
        return self.live.operator_policies or ()

    @cached_property
    def own_policies(self) -> Mapping[str, BrokerPolicy]:
        """Those that attach has set for this installation, by name."""
        return {policy.name: policy for policy in self.policies if belongs_to(policy, self.names.intake)}

    @cached_property
    def users_policies(self) -> Mapping[str, BrokerPolicy]:
        """Those that no installation of tarry has set, by name."""
        return {policy.name: policy for policy in self.policies if not is_own(policy)}

    @cached_property
    def readable_policies(self) -> tuple[BrokerPolicy, ...]:
        """Those of them whose pattern Python can parse."""
        return tuple(policy for policy in self.users_policies.values() if is_readable(policy.pattern))


def read_snapshot(management: Management, names: Names) -> BrokerSnapshot:
    live = read_live(management)
    if live.policies is None or live.operator_policies is None:
        raise BrokerError(next(iter(live.unread.values()), "The broker's policies cannot be read."))
    queues = {about["name"]: UserQueue.read(about) for about in management.queues()}
    return BrokerSnapshot(names, live, queues)


def require_topology(survey: BrokerSnapshot) -> None:
    """Raises if the topology is incomplete: without it, every reject of an attached queue would be lost."""
    names, live = survey.names, survey.live
    gates = tuple(map(names.gate, GATE_KINDS))
    on_the_way = (names.intake, names.relay, names.held_gate, names.arrive, *gates, names.home, names.deliver)
    missing = [f"exchange {name}" for name in on_the_way if name not in live.exchanges]
    bindings = (
        Binding(names.intake, "", names.scheduled),
        former_first_gate(names) if former_first_gate(names) in live.bindings else first_gate(names),
        Binding(names.home, "", names.deliver, "exchange"),
    )
    missing += [f"binding {binding}" for binding in bindings if binding not in live.bindings]
    if missing:
        raise TopologyMismatchError(
            f"This vhost lacks {', '.join(missing)}: run `tarry topology apply` first, then attach again."
        )


def select(wanted: Iterable[str], there: Iterable[str], names: Names, what: str = "queue") -> list[str]:
    """A name is used as given, whether it exists or not.

    A glob selects what matches, except tarry's and the broker's own.
    """
    known = sorted(there)
    chosen: dict[str, None] = {}
    for text in wanted:
        if text in known or not _is_glob(text):
            chosen[text] = None
            continue
        found = [name for name in known if fnmatchcase(name, text) and names.is_users(name)]
        if not found:
            raise SettingsError(f"No {what} matches {text!r}: quote globs so that the shell leaves them alone.")
        chosen.update(dict.fromkeys(found))
    return list(chosen)


def _is_glob(text: str) -> bool:
    return any(sign in text for sign in "*?[")
