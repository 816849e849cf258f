"""The broker as attach sees it: one reading, from which everything else is decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tarry.broker.management import Management
from tarry.core.names import Names
from tarry.errors import BrokerError, TopologyMismatchError
from tarry.topology.live import Live, read_live
from tarry.topology.objects import Arguments, Binding, Queue
from tarry.topology.policies import BrokerPolicy


@dataclass(frozen=True, slots=True)
class UserQueue:
    """One queue, with the traits that decide whether and how it can be attached."""

    name: str
    type: str
    durable: bool
    auto_delete: bool
    exclusive: bool
    arguments: Mapping[str, Any]
    policy: str | None
    """The policy that the broker says it applies right now."""

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
        )

    def argument(self, key: str) -> Any:
        """By the name that the same setting has in a policy."""
        return self.arguments.get(f"x-{key}")

    def as_queue(self) -> Queue:
        """In the form that broker policies are matched against."""
        return Queue(self.name, Arguments((("x-queue-type", self.type),)), durable=self.durable)


@dataclass(frozen=True, slots=True)
class Survey:
    """One vhost: its snapshot, its queues in more detail, and the names of this installation in it."""

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


def read_survey(management: Management, names: Names) -> Survey:
    live = read_live(management)
    if live.policies is None or live.operator_policies is None:
        raise BrokerError(next(iter(live.unread.values()), "The broker's policies cannot be read."))
    queues = {about["name"]: UserQueue.read(about) for about in management.queues()}
    return Survey(names, live, queues)


def require_topology(survey: Survey) -> None:
    """Attaching to an intake that leads nowhere would lose every reject."""
    names, live = survey.names, survey.live
    missing = [f"exchange {name}" for name in (names.intake, names.relay, names.deliver) if name not in live.exchanges]
    if Binding(names.intake, "", names.scheduled) not in live.bindings:
        missing.append(f"the binding from {names.intake} to {names.scheduled}")
    if missing:
        raise TopologyMismatchError(
            f"This vhost lacks {', '.join(missing)}: run `tarry topology apply` first, then attach again."
        )
