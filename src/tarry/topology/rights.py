"""The least that each of tarry's two users needs, as the three patterns of `rabbitmqctl set_permissions`.

The deploy user declares tarry's queues and exchanges and binds destinations to them. The router user configures
nothing: it publishes into the way out, reads its own queues, and binds a destination on first sight, a cancel, a hold.
"""

from __future__ import annotations

import fnmatch
import re

from tarry.broker.declare import Rights
from tarry.topology.model import Topology
from tarry.topology.partial import NamesOnly

NOTHING = "^$"


def deploy_rights(topology: Topology) -> Rights:
    """Binding needs `write` on what is bound, so the destinations are in there; so does the probe of `tarry attach`."""
    ours = _ours(topology)
    return Rights(
        configure=_any_of(ours),
        write=_any_of([*ours, *_destinations(topology)]),
        read=_any_of([*ours, *_destinations(topology)]),
    )


def router_rights(topology: Topology) -> Rights:
    names = topology.broker_names
    exchanges = [names.delay, names.review, names.spool, names.held_gate, names.cancelled_gate, names.deliver]
    exchanges += [names.relay, names.released_gate]
    bound = [names.cancelled, names.scheduled, names.review_queue]
    consumed = [names.scheduled, names.audit, names.cancelled, names.unroutable, names.review_queue]
    sources = [names.deliver, names.cancelled_gate, names.held_gate, names.released_gate]
    held = re.escape(f"{names.prefix}held.") + ".*"
    return Rights(
        configure=NOTHING,
        write=_any_of([*map(re.escape, dict.fromkeys([*exchanges, *bound])), held, *_destinations(topology)]),
        read=_any_of([*map(re.escape, dict.fromkeys([*consumed, *sources])), held]),
    )


def known_router_rights(files: Topology | NamesOnly) -> Rights | None:
    """None where the files do not tell the destinations."""
    return None if isinstance(files, NamesOnly) else router_rights(files)


def _ours(topology: Topology) -> list[str]:
    names = topology.broker_names
    others = [name for name in (names.scheduled, names.review_queue) if not name.startswith(names.prefix)]
    return [re.escape(names.prefix) + ".*", *map(re.escape, others)]


def _destinations(topology: Topology) -> list[str]:
    """Globs as patterns that Erlang reads too, without the wrapping that only Python knows."""
    return [re.sub(r"^\(\?s:(.*)\)\\[Zz]$", r"\1", fnmatch.translate(glob)) for glob in topology.destinations]


def _any_of(patterns: list[str]) -> str:
    return ".*" if ".*" in patterns else f"^({'|'.join(dict.fromkeys(patterns))})$"
