"""Detaches a queue or exchange: first removes the way in, then, when no message is under way, the return path.

A quorum queue reports itself empty while messages wait in its dead-letter buffer (a passive declare counts 0), and it
does not support delete-if-empty. Only its statistics count those messages, and the statistics are some seconds old. So
detach closes the way in, waits until the statistics must be more recent than that, and only then relies on a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pika.adapters.blocking_connection import BlockingChannel

from tarry.amqp.declare import channel
from tarry.amqp.management import Management, uninterrupted
from tarry.amqp.url import Address
from tarry.attach.listing import attached
from tarry.attach.plan import live_fallback, live_policy
from tarry.attach.snapshot import BrokerSnapshot, read_snapshot, select
from tarry.core.names import Destination, Names
from tarry.topology.blueprint import destination_blueprint, way_home
from tarry.topology.expected import lanes_of, tier_role
from tarry.topology.model import Topology
from tarry.topology.objects import Binding
from tarry.topology.retire import SETTLING_SECONDS
from tarry.topology.rights import deploy_rights


@dataclass(frozen=True, slots=True)
class DetachPlan:
    """What has to be removed for one destination; after detach, what was removed, and what is kept and why."""

    destination: Destination
    policies: tuple[str, ...]
    """In the order of deletion: the fallback first, otherwise it would apply for a moment."""
    queues: tuple[str, ...]
    """Its relay queue, one in each lane, and its held queue."""
    relay_bindings: tuple[Binding, ...]
    home: Binding | None
    stuck: int = 0
    """Rejects that would be lost with the policy: without at-least-once the broker drops what is in the buffer."""
    paused: bool = False
    kept: tuple[str, ...] = ()

    @property
    def nothing_to_do(self) -> bool:
        return not (self.policies or self.queues or self.relay_bindings or self.home or self.kept)

    @property
    def parts(self) -> list[str]:
        """One line for each part, with kind and name."""
        bindings = (*self.relay_bindings, *([self.home] if self.home else []))
        return [
            *(f"policy  {policy}" for policy in self.policies),
            *(f"queue   {queue}" for queue in self.queues),
            *(f"binding {binding}" for binding in bindings),
        ]


def plan_detach(survey: BrokerSnapshot, destination: Destination) -> DetachPlan:
    names, live = survey.names, survey.live
    ours = (live_fallback(survey, destination.name), live_policy(survey, destination.name))
    policies = tuple(policy.name for policy in ours if policy) if destination.kind == "queue" else ()
    wanted = destination_blueprint(names, destination, sorted(lanes_of(names, live.queues)))
    home = way_home(names, destination)
    return DetachPlan(
        destination=destination,
        policies=policies,
        queues=tuple(queue.name for queue in wanted.queues if queue.name in live.queues),
        relay_bindings=tuple(found for found in wanted.bindings if found != home and found in live.bindings),
        home=home if home in live.bindings else None,
        stuck=survey.queues[destination.name].stuck if policies and destination.name in survey.queues else 0,
        paused=any(found.key == destination.key for found in live.bindings_from(names.held_gate)),
    )


def detach_plans(survey: BrokerSnapshot, queues: Sequence[str], exchanges: Sequence[str]) -> list[DetachPlan]:
    """Globs match what is attached, even if the queue itself no longer exists."""
    of_queues = select(queues, _names(survey, "queue"), survey.names, "attached queue")
    of_exchanges = select(exchanges, _names(survey, "exchange"), survey.names, "attached exchange")
    return [
        *(plan_detach(survey, Destination("queue", name)) for name in of_queues),
        *(plan_detach(survey, Destination("exchange", name)) for name in of_exchanges),
    ]


def detach(
    topology: Topology,
    address: Address,
    *,
    queues: Sequence[str],
    exchanges: Sequence[str] = (),
    force: bool = False,
    before_waiting: Callable[[], None] = lambda: None,
    on_closed: Callable[[DetachPlan], None] = lambda _: None,
) -> list[DetachPlan]:
    """Detaches and returns what was done; `force` removes the return path even if messages may still need it.

    `on_closed` is called with each destination whose policies were deleted, so that the caller can report them if
    detach is interrupted.
    """
    management = Management(address)
    found = detach_plans(read_snapshot(management, topology.broker_names), queues, exchanges)
    plans = [plan if force else wait_for_rejects(plan) for plan in found]
    for plan in plans:
        if plan.policies:
            with uninterrupted():
                for policy in plan.policies:
                    management.delete_policy(policy)
                on_closed(plan)
    with channel(address, "detach", deploy_rights(topology)) as open_channel:
        for plan in plans:
            _unbind(open_channel, plan.relay_bindings)
        if any(plan.queues or plan.home for plan in plans):
            before_waiting()
            open_channel.connection.sleep(SETTLING_SECONDS)
        depths = read_snapshot(management, topology.broker_names).live.depths
        return [_finish(open_channel, topology.broker_names, plan, depths, force=force) for plan in plans]


def wait_for_rejects(plan: DetachPlan) -> DetachPlan:
    """Keeps everything while rejects wait in the queue's buffer: they need the return path as well."""
    if not plan.stuck:
        return plan
    why = (
        f"all of it: {plan.stuck} rejects wait in the queue for tarry to accept them and would be lost; "
        "stop the worker and detach again when tarry has accepted them, or use --force"
    )
    return DetachPlan(plan.destination, (), (), (), None, plan.stuck, plan.paused, (why,))


def waiting(names: Names, destination: Destination, depths: Mapping[str, int]) -> dict[str, int]:
    """Queues that may contain a message for this destination, with their depth: all on the path, old tiers too."""
    lanes = (None, *lanes_of(names, depths))
    shared = {names.scheduled, names.unroutable, names.layover, *map(names.relay_of, lanes)}
    own = {*(names.relay_queue(destination, lane) for lane in lanes), names.held_queue(destination)}
    return {name: depth for name, depth in depths.items() if depth and (name in shared | own or tier_role(names, name))}


def _finish(
    open_channel: BlockingChannel, names: Names, plan: DetachPlan, depths: Mapping[str, int], *, force: bool
) -> DetachPlan:
    done = plan
    for queue in plan.queues:
        why = _needed(queue, names, plan, depths)
        if why is None:
            open_channel.queue_delete(queue)
        else:
            left = tuple(name for name in done.queues if name != queue)
            done = replace(done, queues=left, kept=(*done.kept, why))
    under_way = waiting(names, plan.destination, depths)
    if plan.home and under_way and not force:
        some = ", ".join(f"{name} ({depth})" for name, depth in sorted(under_way.items()))
        why = (
            f"{plan.home}: messages in flight may need it ({some}); detach again when they have arrived, or use --force"
        )
        done = replace(done, home=None, kept=(*done.kept, why))
    elif plan.home:
        _unbind(open_channel, [plan.home])
    return done


def _needed(queue: str, names: Names, plan: DetachPlan, depths: Mapping[str, int]) -> str | None:
    """The reason why a queue has to stay, or None."""
    if depths.get(queue):
        return f"{queue}: {depths[queue]} messages wait in it for the destination; detach again later"
    if plan.paused and queue == names.held_queue(plan.destination):
        return f"{queue}: returns are paused; run `tarry resume {plan.destination.name}`, then detach again"
    return None


def _unbind(open_channel: BlockingChannel, bindings: Iterable[Binding]) -> None:
    for binding in bindings:
        if binding.destination_type == "queue":
            open_channel.queue_unbind(binding.destination, binding.source, binding.key)
        else:
            open_channel.exchange_unbind(binding.destination, binding.source, binding.key)


def _names(survey: BrokerSnapshot, kind: str) -> list[str]:
    return [destination.name for destination in attached(survey) if destination.kind == kind]
