"""Reads the live broker once, into the same types that the blueprint consists of. Everything after this is pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

from tarry.amqp.management import Management
from tarry.core.names import Names
from tarry.errors import BrokerError, BrokerUnreachableError
from tarry.topology.broker_policies import BrokerPolicy
from tarry.topology.objects import Arguments, Binding, Exchange, Queue
from tarry.topology.record import DIGEST, ApplyRecord, newest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Live:
    """A snapshot of one vhost. None means that this user is not allowed to read it."""

    version: tuple[int, ...]
    exchanges: Mapping[str, Exchange] = field(default_factory=dict)
    queues: Mapping[str, Queue] = field(default_factory=dict)
    bindings: frozenset[Binding] = frozenset()
    policies: tuple[BrokerPolicy, ...] | None = ()
    operator_policies: tuple[BrokerPolicy, ...] | None = ()
    feature_flags: Mapping[str, str] | None = field(default_factory=dict)
    depths: Mapping[str, int] = field(default_factory=dict)
    """Messages in each queue, up to five seconds old; includes messages that are being dead-lettered."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """What could not be read, and why."""
    records: Mapping[str, tuple[ApplyRecord, ...]] = field(default_factory=dict)
    """The apply records, by the exchange that holds them: one exchange for each prefix."""

    def applied(self, names: Names) -> ApplyRecord | None:
        """The record of the last apply; None if there was none, or if an older tarry did it."""
        return newest(self.records.get(names.applied, ()))

    def bindings_to(self, queue: str) -> list[Binding]:
        found = (
            binding for binding in self.bindings if (binding.destination_type, binding.destination) == ("queue", queue)
        )
        return sorted(found, key=lambda binding: (binding.source, binding.key))

    def bindings_from(self, exchange: str) -> list[Binding]:
        found = (binding for binding in self.bindings if binding.source == exchange)
        return sorted(found, key=lambda binding: (binding.key, binding.destination))


def read_live(management: Management) -> Live:
    """Exchanges, queues and bindings must be readable; anything else that the user may not read is noted as unread."""
    unread: dict[str, str] = {}

    def optional(what: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except BrokerUnreachableError:
            raise
        except BrokerError as error:
            unread[what] = str(error)
            return None

    version = management.version()
    queues, bindings = management.queues(), management.bindings()
    policies = optional("policies", management.policies)
    operator = optional("operator policies", management.operator_policies)
    return Live(
        version=version,
        exchanges={about["name"]: exchange_from(about) for about in management.exchanges()},
        queues={about["name"]: queue_from(about) for about in queues},
        bindings=frozenset(binding_from(about) for about in bindings if about["source"]),
        policies=None if policies is None else tuple(map(BrokerPolicy.read, policies)),
        operator_policies=None if operator is None else tuple(map(BrokerPolicy.read, operator)),
        feature_flags=optional("feature flags", management.feature_flags),
        depths={about["name"]: int(about.get("messages") or 0) for about in queues},
        unread=unread,
        records=_records(bindings),
    )


def _records(bindings: list[dict[str, Any]]) -> dict[str, tuple[ApplyRecord, ...]]:
    found: dict[str, tuple[ApplyRecord, ...]] = {}
    for about in bindings:
        if DIGEST in about["arguments"]:
            record = ApplyRecord(Arguments.read(about["arguments"]))
            found[about["source"]] = (*found.get(about["source"], ()), record)
    return found


def exchange_from(about: Mapping[str, Any]) -> Exchange:
    return Exchange(
        about["name"], about["type"], Arguments.read(about["arguments"]), about["durable"], about["internal"]
    )


def queue_from(about: Mapping[str, Any]) -> Queue:
    """The queue type is an argument only if it was declared as one: a classic queue of an older broker has none."""
    arguments = {"x-queue-type": about.get("type", "classic")} | about["arguments"]
    return Queue(about["name"], Arguments.read(arguments), durable=about["durable"])


def binding_from(about: Mapping[str, Any]) -> Binding:
    kind = cast("Literal['queue', 'exchange']", about["destination_type"])
    return Binding(about["source"], about["routing_key"], about["destination"], kind)
