"""Computes the differences between the files and the live broker. Pure: takes a blueprint and a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tarry.core.names import Names
from tarry.topology.blueprint import former_bindings
from tarry.topology.expected import (
    former_entries,
    lane_relays_missing,
    left_over_exchanges,
    left_over_queues,
    tier_role,
)
from tarry.topology.live import Live
from tarry.topology.objects import Binding, Blueprint, Exchange, Queue, Scalar


@dataclass(frozen=True, slots=True)
class Difference:
    """A queue or exchange that exists under the right name but differs from the files."""

    wanted: Queue | Exchange
    live: Queue | Exchange
    messages: int = 0

    @property
    def details(self) -> dict[str, tuple[Scalar | None, Scalar | None]]:
        """Maps each property that differs to (live, wanted)."""
        live, wanted = self.live.properties(), self.wanted.properties()
        keys = sorted(live.keys() | wanted.keys())
        return {key: (live.get(key), wanted.get(key)) for key in keys if live.get(key) != wanted.get(key)}


@dataclass(frozen=True, slots=True)
class Conflict:
    """A routing key of tarry's own that also leads to another queue: each message would be routed to both."""

    wanted: Binding
    live: Binding


@dataclass(frozen=True, slots=True)
class Plan:
    """What has to change.

    Apply declares what is missing, in order, and then removes what is former. An operator has to resolve differences
    and conflicts. What is left over needs drain.
    """

    missing: Blueprint
    different: tuple[Difference, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    left_over: tuple[Queue | Exchange, ...] = ()
    former: tuple[Binding, ...] = ()
    """Bindings of an earlier version that bypass the gates of this one, those of events that a webhook does not want
    any more, and those that lead into a lane that no policy names.
    """

    @property
    def nothing_to_do(self) -> bool:
        return not (len(self.missing) or self.former or self.different or self.conflicts or self.left_over)


def make_plan(names: Names, wanted: Blueprint, live: Live) -> Plan:
    relays = lane_relays_missing(names, wanted, live)
    return Plan(
        missing=Blueprint(
            exchanges=tuple(exchange for exchange in wanted.exchanges if exchange.name not in live.exchanges),
            queues=(*(queue for queue in wanted.queues if queue.name not in live.queues), *relays.queues),
            bindings=(*(binding for binding in wanted.bindings if binding not in live.bindings), *relays.bindings),
        ),
        different=tuple(_different(wanted, live)),
        conflicts=tuple(_conflicts(wanted, live)),
        left_over=(*left_over_queues(names, wanted, live), *left_over_exchanges(names, wanted, live)),
        former=(
            *(binding for binding in former_bindings(names) if binding in live.bindings),
            *_former_events(names, wanted, live),
            *former_entries(names, wanted, live),
        ),
    )


def _different(wanted: Blueprint, live: Live) -> Iterator[Difference]:
    for exchange in wanted.exchanges:
        there = live.exchanges.get(exchange.name)
        if there is not None and there != exchange:
            yield Difference(exchange, there)
    for queue in wanted.queues:
        standing = live.queues.get(queue.name)
        if standing is not None and standing != queue:
            yield Difference(queue, standing, live.depths.get(queue.name, 0))


def _former_events(names: Names, wanted: Blueprint, live: Live) -> Iterator[Binding]:
    """Also all bindings of the queue of a webhook that is gone: nobody reads it any more."""
    for binding in live.bindings_from(names.events):
        if names.webhook_of(binding.destination) is not None and binding not in wanted.bindings:
            yield binding


def _conflicts(wanted: Blueprint, live: Live) -> Iterator[Conflict]:
    """Also finds a ladder of another shape under the same prefix: the same digit leads to another queue."""
    direct = {exchange.name for exchange in wanted.exchanges if exchange.type == "direct"}
    ours = {(binding.source, binding.key): binding for binding in wanted.bindings if binding.source in direct}
    for binding in sorted(live.bindings - set(wanted.bindings), key=str):
        meant = ours.get((binding.source, binding.key))
        if meant is not None:
            yield Conflict(meant, binding)


NEW_PREFIX = (
    "messages in flight carry the digits of the old ladder, so its shape cannot change in place: choose another "
    "`names.prefix`, apply, restart the router, and remove the old installation once it is empty"
)


def explain_difference(names: Names, difference: Difference) -> str:
    """`queue retry.delay.8s: x-message-ttl is 7000, should be 8000. To migrate: …`."""
    thing = f"{difference.wanted.kind} {difference.wanted.name}"
    return f"{thing}: {explain_details(difference)}. To migrate: {way_to_migrate(names, difference)}"


def explain_details(difference: Difference) -> str:
    details = [
        f"{key} is {_spell(live)}, should be {_spell(wanted)}" for key, (live, wanted) in difference.details.items()
    ]
    depth = [f"it holds {counted(difference.messages, 'message')}"] if difference.messages else []
    return "; ".join([*details, *depth])


def way_to_migrate(names: Names, difference: Difference) -> str:
    name = difference.wanted.name
    if isinstance(difference.live, Exchange):
        return (
            "stop the router, delete the exchange in the management UI (the tiers keep messages that come due), "
            "run `tarry topology apply`, attach its destinations again (`tarry attach`), start the router"
        )
    if name == names.events_stream:
        return (
            f"delete the stream (`rabbitmqctl delete_queue {name}`), which deletes the events that it "
            "keeps, then `tarry topology apply`; events that happen meanwhile wait in Postgres"
        )
    leads_home = names.has_prefix(difference.live.dead_letters_to or "")
    if tier_role(names, name) is None or not leads_home:
        return (
            "stop the router, move its messages elsewhere (a shovel, or the management UI), delete the queue once it "
            "is empty, run `tarry topology apply`, start the router"
        )
    if "x-dead-letter-exchange" in difference.details:
        return NEW_PREFIX
    return f"`tarry topology drain {name}`, then `tarry topology apply`"


def way_to_remove_webhook(queue: str) -> str:
    """What to do about messages in the queue of a webhook that is gone."""
    return (
        f"put the webhook back to deliver them, or delete them (`rabbitmqctl purge_queue {queue}`) and run "
        "`tarry topology prune`"
    )


def explain_conflict(conflict: Conflict) -> str:
    wanted, live = conflict.wanted, conflict.live
    return (
        f"exchange {wanted.source}: key {wanted.key} leads to {live.destination} and should lead to "
        f"{wanted.destination}; with both, each message would be duplicated. If the ladder changed: {NEW_PREFIX}. "
        "Otherwise unbind it in the management UI."
    )


def counted(number: int, thing: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _spell(value: Scalar | None) -> str:
    return "not set" if value is None else str(value)
