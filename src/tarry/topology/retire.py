"""Takes a tier out of service without losing or hurrying a message: close its entry, wait it out, delete it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from tarry.broker.address import Address
from tarry.broker.declare import channel
from tarry.broker.management import Management
from tarry.errors import NotDrainableError, TopologyMismatchError
from tarry.topology.expected import Expected
from tarry.topology.left_over import tier_role
from tarry.topology.live import Live, read_live
from tarry.topology.model import Topology
from tarry.topology.objects import Queue
from tarry.topology.rights import deploy_rights
from tarry.topology.settle import POLL_SECONDS, Settling

Watch = Callable[[int, float], None]
"""Called with how many messages are left and how many seconds the wait can still last at most."""


def drain(topology: Topology, address: Address, name: str, watch: Watch | None = None) -> None:
    """Closes the entry, waits until the tier's own TTL has carried every message on, then deletes the empty queue."""
    tier = close_entry(topology, address, name)
    settling, started, longest = Settling(), time.monotonic(), (tier.ttl_ms or 0) / 1000
    management = Management(address)
    while True:
        depth, now = _depth_of_closed(management, name), time.monotonic()
        if settling.observe(depth, now):
            break
        if watch is not None:
            watch(depth, max(0.0, longest - (now - started)) + settling.seconds)
        time.sleep(POLL_SECONDS)
    delete_empty(topology, address, [name])


def close_entry(topology: Topology, address: Address, name: str) -> Queue:
    """Unbinds a tier, so that nothing new enters; what it holds leaves in its own time. Gives the tier back."""
    live = read_live(Management(address))
    tier = drainable(Expected.of(topology, address.vhost), live, name)
    with channel(address, "topology drain", deploy_rights(topology)) as open_channel:
        for binding in live.bindings_to(name):
            open_channel.queue_unbind(name, binding.source, binding.key)
    return tier


def drainable(expected: Expected, live: Live, name: str) -> Queue:
    """The live tier, or a refusal that says why it must not be drained."""
    tier, prefix = live.queues.get(name), expected.names.prefix
    if tier_role(expected.names, name) is None:
        raise NotDrainableError(
            f"{name} is not a tier: only {prefix}delay.* and {prefix}ladder.* queues can be drained."
        )
    if tier is None:
        raise NotDrainableError(f"There is no queue {name} on the broker: nothing to drain.")
    if tier in expected.blueprint.queues:
        raise NotDrainableError(
            f"{name} is in use: take its delay out of every policy first, apply, restart the router."
        )
    if not leads_home(expected, live, tier):
        raise TopologyMismatchError(
            f"{name} dead-letters to {tier.dead_letters_to or 'nothing'}, which does not lead home: what it holds "
            "would be lost when it expires. Move its messages by hand (a shovel), then delete it."
        )
    return tier


def leads_home(expected: Expected, live: Live, tier: Queue) -> bool:
    """Whether what expires here goes on to one of tarry's own exchanges."""
    target = tier.dead_letters_to
    return target is not None and target.startswith(expected.names.prefix) and target in live.exchanges


def delete_empty(topology: Topology, address: Address, names: Collection[str]) -> None:
    """The last look, over AMQP and fresh: a message that someone put there straight by the queue's name stops it."""
    if not names:
        return
    with channel(address, "topology prune", deploy_rights(topology)) as open_channel:
        for name in names:
            state = open_channel.queue_declare(name, passive=True).method
            if state.message_count or state.consumer_count:
                raise TopologyMismatchError(
                    f"{name} was about to be deleted and has {state.message_count} messages and "
                    f"{state.consumer_count} consumers again: somebody uses it by name. It was left as it is."
                )
            open_channel.queue_delete(name)


def _depth_of_closed(management: Management, name: str) -> int:
    """How much is in there; an entry that was opened again meanwhile would make the wait endless."""
    entries = [about["source"] for about in management.queue_bindings(name) if about["source"]]
    if entries:
        raise TopologyMismatchError(
            f"{name} was bound to {entries[0]} again while it was drained: somebody applied a topology that still has "
            "it. Settle on one topology, then drain again."
        )
    return next((int(about.get("messages") or 0) for about in management.queues() if about["name"] == name), 0)
