"""Deletes what an earlier topology left behind, once it is empty and nothing leads to it."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from tarry.broker.address import Address
from tarry.broker.declare import channel
from tarry.broker.management import Management
from tarry.topology.expected import Expected
from tarry.topology.left_over import left_over_exchanges, left_over_queues
from tarry.topology.live import Live, read_live
from tarry.topology.model import Topology
from tarry.topology.retire import Watch, delete_empty
from tarry.topology.rights import deploy_rights
from tarry.topology.settle import POLL_SECONDS, SETTLING_SECONDS, Settling


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted, and what was kept and why."""

    deleted: tuple[str, ...] = ()
    kept: dict[str, str] = field(default_factory=dict)


def prune(
    topology: Topology, address: Address, watch: Watch | None = None, only: Collection[str] | None = None
) -> Pruned:
    """Every retired tier that is empty and unbound goes, then every level of the ladder that nothing uses.

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
    delete_empty(topology, address, empty)
    unused = [name for name in unused_levels(expected, read_live(management)) if only is None or name in only]
    levels = _delete_unused_levels(topology, address, unused)
    return Pruned((*empty, *levels), {name: reason for name, reason in kept.items() if reason is not None})


def prunable(expected: Expected, live: Live) -> list[str]:
    """What prune would delete now."""
    tiers = [name for name, reason in reasons_to_keep(expected, live).items() if reason is None]
    return [*sorted(tiers), *unused_levels(expected, live)]


def reasons_to_keep(expected: Expected, live: Live) -> dict[str, str | None]:
    """Every retired tier, with None where nothing speaks for keeping it."""
    retired = left_over_queues(expected.names, expected.blueprint, live)
    return {queue.name: _reason_to_keep(live, queue.name) for queue in retired}


def _reason_to_keep(live: Live, name: str) -> str | None:
    entries, depth = live.bindings_to(name), live.depths.get(name, 0)
    if entries:
        return f"still bound to {entries[0].source}: tarry topology drain {name}"
    return f"still holds {depth} messages, which leave in their own time" if depth else None


def _not_confirmed(name: str, only: Collection[str] | None) -> str | None:
    return None if only is None or name in only else "became empty after the question: run prune again"


def unused_levels(expected: Expected, live: Live) -> list[str]:
    """A level goes when no queue dead-letters to it, no exchange falls back on it and no binding touches it."""
    used = {queue.dead_letters_to for queue in live.queues.values()}
    used |= {exchange.alternate for exchange in live.exchanges.values()}
    used |= {end for binding in live.bindings for end in (binding.source, binding.destination)}
    retired = left_over_exchanges(expected.names, expected.blueprint, live)
    return [level.name for level in retired if level.name not in used]


def _delete_unused_levels(topology: Topology, address: Address, levels: list[str]) -> list[str]:
    if levels:
        with channel(address, "topology prune", deploy_rights(topology)) as open_channel:
            for name in levels:
                open_channel.exchange_delete(name, if_unused=True)
    return levels
