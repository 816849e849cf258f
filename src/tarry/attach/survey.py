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
    stuck: int = 0
    """Rejects in its dead-letter buffer, some seconds ago: they have left the queue and are nowhere else yet."""

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
        """By the name that the same setting has in a policy."""
        return self.arguments.get(f"x-{key}")

    def as_queue(self) -> Queue:
        """In the form that broker policies are matched against."""
        return Queue(self.name, Arguments((("x-queue-type", self.type),)), durable=self.durable)


def _stuck(about: Mapping[str, Any]) -> int:
    """A queue's total counts them, its two parts do not."""
    total, ready, unacked = (about.get(key) or 0 for key in ("messages", "messages_ready", "messages_unacknowledged"))
    return max(0, int(total) - int(ready) - int(unacked))


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
    on_the_way = (names.intake, names.relay, names.held_gate, names.arrive, names.deliver)
    missing = [f"exchange {name}" for name in on_the_way if name not in live.exchanges]
    bindings = (Binding(names.intake, "", names.scheduled), Binding(names.arrive, "", names.deliver, "exchange"))
    missing += [f"binding {binding}" for binding in bindings if binding not in live.bindings]
    if missing:
        raise TopologyMismatchError(
            f"This vhost lacks {', '.join(missing)}: run `tarry topology apply` first, then attach again."
        )
