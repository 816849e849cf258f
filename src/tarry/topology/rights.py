"""The minimal permissions of tarry's two broker users, as the three patterns of `rabbitmqctl set_permissions`.

The deploy user declares tarry's queues and exchanges and binds destinations to them. The router user configures
nothing: it publishes to tarry's exchanges, consumes its own queues, and creates bindings for a destination seen for the
first time, for a cancellation and for a pause.
"""

from __future__ import annotations

import fnmatch
import re

from tarry.amqp.declare import Rights
from tarry.core.names import GATE_KINDS
from tarry.topology.model import Topology
from tarry.topology.partial import NamesOnly

NOTHING = "^$"


def deploy_rights(topology: Topology) -> Rights:
    """Includes the destinations: binding needs `write` on the bound queue, and so does the probe of `tarry attach`."""
    ours = _ours(topology)
    return Rights(
        configure=_any_of(ours),
        write=_any_of([*ours, *_destinations(topology)]),
        read=_any_of([*ours, *_destinations(topology)]),
    )


def router_rights(topology: Topology) -> Rights:
    names = topology.broker_names
    exchanges = [names.delay, names.review, names.spool, names.held_gate, names.cancelled_gate, names.deliver]
    exchanges += [names.relay, names.released_gate, names.reports]
    bound = [names.cancelled, names.scheduled, names.review_queue]
    consumed = [names.scheduled, names.audit, names.cancelled, names.unroutable, names.layover, names.review_queue]
    sources = [names.deliver, names.cancelled_gate, names.held_gate, names.released_gate]
    sources += [names.recheck_cancelled, names.recheck_held]
    sources += [exchange for kind in GATE_KINDS for exchange in (names.gate(kind), names.recheck_gate(kind))]
    if topology.lanes:
        sources.append(names.lanes_cancelled)
    if topology.events.enabled:
        exchanges.append(names.events)
        consumed.append(names.events_stream)
    if topology.webhooks:
        exchanges += [names.intake, names.reports]
        consumed += [names.webhook_queue(webhook.name) for webhook in topology.webhooks]
    held = f"({re.escape(names.stem('held'))}|{re.escape(names.stem('gate'))}).*"
    checks = f"{re.escape(names.stem('check'))}.*"
    return Rights(
        configure=NOTHING,
        write=_any_of([*map(re.escape, dict.fromkeys([*exchanges, *bound])), held, *_destinations(topology)]),
        read=_any_of([*map(re.escape, dict.fromkeys([*consumed, *sources])), held, checks]),
    )


def known_router_rights(files: Topology | NamesOnly) -> Rights | None:
    """None if the files do not determine the destinations."""
    return None if isinstance(files, NamesOnly) else router_rights(files)


def _ours(topology: Topology) -> list[str]:
    names = topology.broker_names
    others = [name for name in (names.scheduled, names.review_queue) if not names.has_prefix(name)]
    others += [names.webhook_queue(webhook.name) for webhook in topology.webhooks]
    return [re.escape(names.prefix) + ".*", *map(re.escape, others)]


def _destinations(topology: Topology) -> list[str]:
    """The globs as patterns that Erlang also accepts, without the wrapper that only Python supports."""
    return [re.sub(r"^\(\?s:(.*)\)\\[Zz]$", r"\1", fnmatch.translate(glob)) for glob in topology.acceptable]


def _any_of(patterns: list[str]) -> str:
    return ".*" if ".*" in patterns else f"^({'|'.join(dict.fromkeys(patterns))})$"
