"""Makes the broker match the files: declares what is missing, changes nothing that is there.

The order is what makes it safe. Exchanges stand before anything names them, queues before anything leads to them, and
bindings open the way from its end to its beginning, so that a run cut off anywhere leaves no path that ends in nothing.
Every step may be repeated, so running it twice, from two places at once, or again after a cut is all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pika.adapters.blocking_connection import BlockingChannel

from tarry.broker.address import Address
from tarry.broker.declare import channel
from tarry.broker.management import Management
from tarry.errors import BrokerTooOldError, TopologyMismatchError
from tarry.topology.blueprint import blueprint
from tarry.topology.checks.files import concerns
from tarry.topology.expected import Expected
from tarry.topology.explain import explain_conflict, explain_difference
from tarry.topology.findings import Finding
from tarry.topology.live import Live, read_live
from tarry.topology.model import Topology
from tarry.topology.objects import Binding, Blueprint, Exchange, Queue
from tarry.topology.plan import Plan, make_plan
from tarry.topology.record import ApplyRecord, write_record
from tarry.topology.rights import deploy_rights

OLDEST = (3, 10)
"""The first series with at-least-once dead-lettering."""

Progress = Callable[[int, int, str], None]
"""Called with how many are done, how many there are, and the name of the one just done."""

Warn = Callable[[Finding], None]


@dataclass(frozen=True, slots=True)
class Applied:
    """What apply did."""

    plan: Plan
    seconds: float
    record: ApplyRecord

    @property
    def declared(self) -> int:
        return len(self.plan.missing)


def apply(topology: Topology, address: Address, progress: Progress | None = None, warn: Warn | None = None) -> Applied:
    """Declares what is missing, and records what was applied; refuses, with nothing changed, where something differs.

    `warn` gets what is worth knowing about the files before anything is done.
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
        declare(open_channel, plan.missing, progress)
        record = ApplyRecord.of(topology)
        write_record(open_channel, names, record, live.records.get(names.applied, ()))
    return Applied(plan, time.monotonic() - started, record)


def plan_for(topology: Topology, address: Address) -> Plan:
    return make_plan(topology.broker_names, blueprint(topology), read_supported(address))


def read_supported(address: Address) -> Live:
    """The live broker, or a refusal of one that is too old."""
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
    """Exchanges, queues, bindings, each in the order given; what is there already with the same arguments stays."""
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


def _refusal(topology: Topology, plan: Plan) -> str:
    lines = [explain_difference(topology.broker_names, difference) for difference in plan.different]
    lines += [explain_conflict(conflict) for conflict in plan.conflicts]
    return "\n".join(["Nothing was changed, because something on the broker differs from the topology:", *lines])
