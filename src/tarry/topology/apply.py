"""Declares on the broker what the topology files require and is missing; changes no queue or exchange that exists.

The order makes it safe. Exchanges are declared before anything refers to them, queues before anything routes to them,
and bindings are created from the end of a message's path to its beginning, so that an interrupted run leaves no path
without an end. Bindings of an earlier version are removed next: until then a message has two ways to the same queues,
and the broker delivers it to each queue once. The bindings that lead into check queues come last: before, a message
would go to its check queue on one way and home on the other. Every step can be repeated: running apply twice, from two
places at once, or again after an interruption gives the same result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from pika.adapters.blocking_connection import BlockingChannel

from tarry.amqp.declare import channel
from tarry.amqp.management import Management
from tarry.amqp.url import Address
from tarry.errors import BrokerTooOldError, TopologyMismatchError
from tarry.topology.blueprint import blueprint
from tarry.topology.checks.files import concerns
from tarry.topology.expected import Expected
from tarry.topology.findings import Finding
from tarry.topology.live import Live, read_live
from tarry.topology.model import Topology
from tarry.topology.objects import Binding, Blueprint, Exchange, Queue
from tarry.topology.plan import Plan, explain_conflict, explain_difference, make_plan
from tarry.topology.record import ApplyRecord, write_record
from tarry.topology.rights import deploy_rights

OLDEST = (3, 10)
"""The first series with at-least-once dead-lettering."""

Progress = Callable[[int, int, str], None]
"""Called with the number of parts done, the total number, and the name of the part just done."""

Warn = Callable[[Finding], None]


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of `apply`."""

    plan: Plan
    seconds: float
    record: ApplyRecord

    @property
    def declared(self) -> int:
        return len(self.plan.missing)


def apply(topology: Topology, address: Address, progress: Progress | None = None, warn: Warn | None = None) -> Applied:
    """Declares what is missing and records what was applied; raises, with nothing changed, if something differs.

    `warn` is called with findings about the files, before anything is changed.
    """
    started, names = time.monotonic(), topology.broker_names
    live = read_supported(address)
    if warn is not None:
        for finding in concerns(Expected.of(topology, address.vhost), live):
            warn(finding)
    plan = make_plan(names, blueprint(topology), live)
    if plan.different or plan.conflicts:
        raise TopologyMismatchError(_refusal(topology, plan))
    with channel(address, "topology apply", deploy_rights(topology)) as open_channel:
        into_checks = tuple(binding for binding in plan.missing.bindings if binding.source == names.check_gate)
        others = tuple(binding for binding in plan.missing.bindings if binding not in into_checks)
        declare(open_channel, replace(plan.missing, bindings=others), progress)
        for binding in plan.former:
            _remove(open_channel, binding)
        declare(open_channel, Blueprint((), (), into_checks), progress)
        record = ApplyRecord.of(topology)
        write_record(open_channel, names, record, live.records.get(names.applied, ()))
    return Applied(plan, time.monotonic() - started, record)


def read_supported(address: Address) -> Live:
    """Reads the live broker; raises if its version is too old."""
    live = read_live(Management(address))
    refuse_old(live.version)
    return live


def refuse_old(version: tuple[int, ...]) -> None:
    if version[:2] < OLDEST:
        found, needed = ".".join(map(str, version)), ".".join(map(str, OLDEST))
        raise BrokerTooOldError(
            f"The broker is RabbitMQ {found}; tarry needs {needed} or later, because before it a dead-lettered "
            "message could be lost on its way. Upgrade the broker."
        )


def declare(open_channel: BlockingChannel, wanted: Blueprint, progress: Progress | None = None) -> None:
    """Declares exchanges, queues and bindings in the order given.

    What exists with the same arguments stays unchanged.
    """
    everything: list[Exchange | Queue | Binding] = [*wanted.parts, *wanted.bindings]
    for done, part in enumerate(everything, start=1):
        _declare_one(open_channel, part)
        if progress is not None:
            progress(done, len(everything), str(part) if isinstance(part, Binding) else part.name)


def _declare_one(open_channel: BlockingChannel, part: Exchange | Queue | Binding) -> None:
    match part:
        case Exchange():
            open_channel.exchange_declare(part.name, part.type, durable=True, arguments=part.arguments.as_dict())
        case Queue():
            open_channel.queue_declare(part.name, durable=True, arguments=part.arguments.as_dict())
        case Binding(destination_type="queue"):
            open_channel.queue_bind(part.destination, part.source, part.key)
        case Binding():
            open_channel.exchange_bind(part.destination, part.source, part.key)


def _remove(open_channel: BlockingChannel, binding: Binding) -> None:
    if binding.destination_type == "queue":
        open_channel.queue_unbind(binding.destination, binding.source, binding.key)
    else:
        open_channel.exchange_unbind(binding.destination, binding.source, binding.key)


def _refusal(topology: Topology, plan: Plan) -> str:
    lines = [explain_difference(topology.broker_names, difference) for difference in plan.different]
    lines += [explain_conflict(conflict) for conflict in plan.conflicts]
    return "\n".join(["Nothing was changed, because something on the broker differs from the topology:", *lines])
