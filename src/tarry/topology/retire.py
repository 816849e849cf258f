"""Drains and prunes retired tiers: unbinds a tier, waits until it is empty, then deletes it.

The queues of a lane that no policy names are not drained one by one: messages pass from one of them to the next. Apply
closes the entries of the lane, and prune deletes all of it once all of it is empty.

No single reading proves that a queue is empty. A quorum queue refuses `delete if-empty`. The AMQP message count omits
messages that are being dead-lettered, and the management API's count, which includes them, is up to five seconds old.
So an unbound queue counts as empty when the management API has reported it empty for so long that at least one of the
counts must be recent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

from tarry.amqp.declare import channel
from tarry.amqp.management import Management
from tarry.amqp.url import Address
from tarry.core.names import Destination
from tarry.errors import NotDrainableError, TopologyMismatchError
from tarry.topology.expected import (
    Expected,
    former_entries,
    lanes_of,
    lanes_wanted,
    left_over_exchanges,
    left_over_queues,
    tier_role,
)
from tarry.topology.live import Live, read_live
from tarry.topology.model import Topology
from tarry.topology.objects import Queue
from tarry.topology.plan import way_to_remove_webhook
from tarry.topology.rights import deploy_rights

POLL_SECONDS = 1.0

SETTLING_SECONDS = 12.0
"""More than two counting intervals: the first count may have been taken before the queue was unbound."""


@dataclass(slots=True)
class Settling:
    """Decides from successive depths whether a queue is empty."""

    seconds: float = SETTLING_SECONDS
    _empty_since: float | None = None

    def observe(self, depth: int, now: float) -> bool:
        """True once every depth has been 0 for long enough."""
        if depth:
            self._empty_since = None
            return False
        if self._empty_since is None:
            self._empty_since = now
        return now - self._empty_since >= self.seconds


Watch = Callable[[int, float], None]
"""Called with the number of messages left and the maximum number of seconds that the wait can still last."""


def drain(topology: Topology, address: Address, name: str, watch: Watch | None = None) -> None:
    """Unbinds the tier, waits until its TTL has moved every message on, then deletes the empty queue."""
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
    """Unbinds a tier, so that nothing new enters; messages in it leave when their TTL ends. Returns the tier."""
    live = read_live(Management(address))
    tier = drainable(Expected.of(topology, address.vhost), live, name)
    with channel(address, "topology drain", deploy_rights(topology)) as open_channel:
        for binding in live.bindings_to(name):
            open_channel.queue_unbind(name, binding.source, binding.key)
    return tier


def drainable(expected: Expected, live: Live, name: str) -> Queue:
    """The live tier; raises with the reason if it must not be drained."""
    tier, names = live.queues.get(name), expected.names
    if tier_role(names, name) is None:
        raise NotDrainableError(
            f"{name} is not a tier: only {names.stem('tier')}*, {names.stem('ladder')}* and {names.stem('check')}* "
            "queues can be drained."
        )
    if tier is None:
        raise NotDrainableError(f"There is no queue {name} on the broker: nothing to drain.")
    if tier in expected.blueprint.queues:
        what = "check" if tier_role(names, name) == "check" else "delay"
        raise NotDrainableError(
            f"{name} is in use: remove its {what} from every policy first, apply, restart the router."
        )
    if (lane := names.lane_of(name)) is not None and lane not in expected.topology.lanes:
        raise NotDrainableError(
            f"{name} belongs to lane {lane}, which no policy names: run `tarry topology apply`, after which nothing "
            "enters the lane, then `tarry topology prune` once its messages have left it."
        )
    if not leads_home(expected, live, tier):
        raise TopologyMismatchError(
            f"{name} dead-letters to {tier.dead_letters_to or 'nothing'}, which does not lead back: its messages "
            "would be lost when it expires. Move its messages by hand (a shovel), then delete it."
        )
    return tier


def leads_home(expected: Expected, live: Live, tier: Queue) -> bool:
    """Whether messages that expire here are dead-lettered to one of tarry's own exchanges."""
    target = tier.dead_letters_to
    return target is not None and expected.names.has_prefix(target) and target in live.exchanges


def delete_empty(topology: Topology, address: Address, names: Collection[str]) -> None:
    """Deletes the queues after a last count over AMQP, which is current.

    It stops at a queue that has messages again, which someone published directly to its name, or consumers.
    """
    if not names:
        return
    with channel(address, "topology prune", deploy_rights(topology)) as open_channel:
        for name in names:
            state = open_channel.queue_declare(name, passive=True).method
            if state.message_count or state.consumer_count:
                raise TopologyMismatchError(
                    f"{name} was about to be deleted and has {state.message_count} messages and "
                    f"{state.consumer_count} consumers again: somebody uses it by name. It was not deleted."
                )
            open_channel.queue_delete(name)


def _depth_of_closed(management: Management, name: str) -> int:
    """The depth of the queue. Raises if the queue was bound again meanwhile, because the wait would then never end."""
    entries = [about["source"] for about in management.queue_bindings(name) if about["source"]]
    if entries:
        raise TopologyMismatchError(
            f"{name} was bound to {entries[0]} again while it was drained: somebody applied a topology that still has "
            "it. Decide on one topology, then drain again."
        )
    return next((int(about.get("messages") or 0) for about in management.queues() if about["name"] == name), 0)


@dataclass(frozen=True, slots=True)
class PrunedTiers:
    """What was deleted, and what was kept for which reason."""

    deleted: tuple[str, ...] = ()
    kept: dict[str, str] = field(default_factory=dict)


def prune(
    topology: Topology, address: Address, watch: Watch | None = None, only: Collection[str] | None = None
) -> PrunedTiers:
    """Deletes every retired tier that is empty and unbound, then every level of the ladder that nothing uses.

    `only` are the names that may be deleted; None allows all.
    """
    expected, management = Expected.of(topology, address.vhost), Management(address)
    settlings: dict[str, Settling] = {}
    while True:
        kept = {
            name: reason or _not_confirmed(name, only)
            for name, reason in reasons_to_keep(expected, read_live(management)).items()
        }
        empty = sorted(name for name, reason in kept.items() if reason is None)
        settlings = {name: settlings.get(name, Settling()) for name in empty}
        settled = {name: settling.observe(0, time.monotonic()) for name, settling in settlings.items()}
        if all(settled.values()):
            break
        if watch is not None:
            watch(0, SETTLING_SECONDS)
        time.sleep(POLL_SECONDS)
    empty += serving_webhooks(expected, read_live(management), empty)
    delete_empty(topology, address, empty)
    live = read_live(management)
    unused = [name for name in unused_levels(expected, live) if only is None or name in only]
    of_lanes = [name for name in unused_of_lanes(expected, live) if only is None or name in only]
    levels = _delete_unused_levels(topology, address, unused) + _delete_of_lanes(topology, address, of_lanes)
    return PrunedTiers((*empty, *levels), {name: reason for name, reason in kept.items() if reason is not None})


def prunable(expected: Expected, live: Live) -> list[str]:
    """What prune would delete now."""
    tiers = [name for name, reason in reasons_to_keep(expected, live).items() if reason is None]
    without = replace(live, queues={name: queue for name, queue in live.queues.items() if name not in set(tiers)})
    exchanges = [*unused_levels(expected, live), *unused_of_lanes(expected, without)]
    return [*sorted(tiers), *serving_webhooks(expected, live, tiers), *exchanges]


def serving_webhooks(expected: Expected, live: Live, queues: Iterable[str]) -> list[str]:
    """The relay queues and held queues of those of these queues that belong to webhooks."""
    names = expected.names
    gone = [Destination("queue", queue) for queue in queues if names.webhook_of(queue) is not None]
    lanes = (None, *sorted(lanes_of(names, live.queues))) if gone else ()
    wanted = [
        name for one in gone for name in (*(names.relay_queue(one, lane) for lane in lanes), names.held_queue(one))
    ]
    return [name for name in wanted if name in live.queues]


def reasons_to_keep(expected: Expected, live: Live) -> dict[str, str | None]:
    """Every retired tier with the reason to keep it, or None if it can be deleted."""
    retired = [queue.name for queue in left_over_queues(expected.names, expected.blueprint, live)]
    lanes = _reasons_to_keep_lanes(expected, live)
    reasons: dict[str, str | None] = {}
    for name in retired:
        lane = expected.names.lane_of(name)
        in_gone_lane = lane is not None and lane in lanes
        reasons[name] = lanes[lane or ""] if in_gone_lane else _reason_to_keep(expected, live, name)
    return reasons


def _reasons_to_keep_lanes(expected: Expected, live: Live) -> dict[str, str | None]:
    """Every lane that no policy names, with the reason to keep all of its queues, or None if they can be deleted."""
    names = expected.names
    gone = lanes_of(names, live.queues) - lanes_wanted(names, expected.blueprint)
    open_lanes = {names.lane_of_key(entry.key) for entry in former_entries(names, expected.blueprint, live)}
    depths = dict.fromkeys(gone, 0)
    for name, depth in live.depths.items():
        lane = names.lane_of(name)
        if lane is not None and lane in depths:
            depths[lane] += depth
    reasons: dict[str, str | None] = {}
    for lane, depth in depths.items():
        holds = f"its lane {lane} still holds {depth} messages, which leave when they expire" if depth else None
        reasons[lane] = f"messages can still enter lane {lane}: tarry topology apply" if lane in open_lanes else holds
    return reasons


def _reason_to_keep(expected: Expected, live: Live, name: str) -> str | None:
    if expected.names.webhook_of(name) is not None:
        return _reason_to_keep_webhook(expected, live, name)
    entries, depth = live.bindings_to(name), live.depths.get(name, 0)
    if entries:
        return f"still bound to {entries[0].source}: tarry topology drain {name}"
    return f"still holds {depth} messages, which leave when they expire" if depth else None


def _reason_to_keep_webhook(expected: Expected, live: Live, name: str) -> str | None:
    """Its return binding does not count: retries that need it later are unroutable then, and go to review."""
    events = [entry for entry in live.bindings_to(name) if entry.source == expected.names.events]
    if events:
        return f"still bound to {expected.names.events}: tarry topology apply"
    queues = [name, *serving_webhooks(expected, live, [name])]
    depth = sum(live.depths.get(queue, 0) for queue in queues)
    return f"still holds {depth} messages: {way_to_remove_webhook(name)}" if depth else None


def _not_confirmed(name: str, only: Collection[str] | None) -> str | None:
    return None if only is None or name in only else "became empty after the confirmation: run prune again"


def unused_levels(expected: Expected, live: Live) -> list[str]:
    """Levels to which no queue dead-letters, that no exchange has as its alternate, and that no binding touches."""
    used = {queue.dead_letters_to for queue in live.queues.values()}
    used |= {exchange.alternate for exchange in live.exchanges.values()}
    used |= {end for binding in live.bindings for end in (binding.source, binding.destination)}
    retired = left_over_exchanges(expected.names, expected.blueprint, live)
    levels = [level.name for level in retired if level.name not in used]
    return [name for name in levels if not _is_of_lanes(expected, name)]


def unused_of_lanes(expected: Expected, live: Live) -> list[str]:
    """Exchanges of lanes that no policy names and that have no queue any more; then the gate that lanes share, if no
    lane is left.
    """
    names = expected.names
    entered = (names.lane_of_key(entry.key) for entry in live.bindings_from(names.delay))
    kept = lanes_of(names, live.queues) | lanes_wanted(names, expected.blueprint)
    kept |= {lane for lane in entered if lane is not None}
    of_lanes = ((name, names.lane_of_exchange(name)) for name in sorted(live.exchanges))
    unused = [name for name, lane in of_lanes if lane is not None and lane not in kept]
    gate_is_unused = names.lanes_cancelled in live.exchanges and not kept
    return [*unused, names.lanes_cancelled] if gate_is_unused else unused


def _is_of_lanes(expected: Expected, exchange: str) -> bool:
    return expected.names.lane_of_exchange(exchange) is not None or exchange == expected.names.lanes_cancelled


def _delete_of_lanes(topology: Topology, address: Address, exchanges: list[str]) -> list[str]:
    """No message is in the lane and none can enter it, so bindings between these exchanges carry nothing."""
    if exchanges:
        with channel(address, "topology prune", deploy_rights(topology)) as open_channel:
            for name in exchanges:
                open_channel.exchange_delete(name)
    return exchanges


def _delete_unused_levels(topology: Topology, address: Address, levels: list[str]) -> list[str]:
    if levels:
        with channel(address, "topology prune", deploy_rights(topology)) as open_channel:
            for name in levels:
                open_channel.exchange_delete(name, if_unused=True)
    return levels
