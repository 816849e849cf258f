"""`tarry topology drain` and `prune`: taking tiers out of service, after a question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from tarry.broker.address import Address
from tarry.broker.management import Management
from tarry.cli import options as given
from tarry.cli import topology_view as view
from tarry.cli.output import confirm, line, note, print_json, waiting
from tarry.core.durations import humanise
from tarry.topology.checks.files import check_applied
from tarry.topology.expected import Expected
from tarry.topology.explain import counted
from tarry.topology.findings import Finding
from tarry.topology.live import Live, read_live
from tarry.topology.model import Topology
from tarry.topology.prune import prunable
from tarry.topology.prune import prune as prune_topology
from tarry.topology.record import described
from tarry.topology.retire import close_entry, drainable
from tarry.topology.retire import drain as drain_tier

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Needed where there is no terminal to ask on.")]

MOST_NAMED = 10


def register(app: typer.Typer) -> None:
    app.command()(drain)
    app.command()(prune)


def drain(
    tier: Annotated[str, typer.Argument(help="The queue of a tier that no policy uses any more.")],
    *,
    folder: given.TopologyFolder = None,
    url: given.Url = given.DEFAULT_URL,
    management_url: given.ManagementUrl = None,
    ca_file: given.CaFile = None,
    wait: Annotated[
        bool, typer.Option(help="Wait until it is empty and delete it; else `prune` does it later.")
    ] = True,
    yes: Yes = False,
    as_json: given.AsJson = False,
) -> None:
    """Close a retired tier's entry, wait until each message has left in its own time, then delete the queue.

    It asks first, and names the topology that it goes by.
    """
    place = _Place.read(given.topology_from(folder), given.address_from(url, management_url, ca_file))
    drainable(place.expected, place.live, tier)
    place.introduce(as_json=as_json)
    holds = counted(place.live.depths.get(tier, 0), "message")
    then = "deletes it once it is empty" if wait else "lets it run empty"
    place.ask(f"This closes the entry of {tier} ({holds}) and {then}.", yes=yes)
    close_entry(place.topology, place.address, tier)
    if not wait:
        _answer(as_json, place.json | {"drained": tier, "deleted": False}, f"Nothing enters {tier} any more.")
        return
    note(f"Nothing enters {tier} any more; waiting until it is empty. Ctrl-C is safe: `prune` deletes it later.")
    with waiting(f"Draining {tier}", quiet=as_json) as tell:
        drain_tier(place.topology, place.address, tier, lambda left, seconds: tell(_news(left, seconds)))
    _answer(as_json, place.json | {"drained": tier, "deleted": True}, f"{tier} is empty and deleted.")


def prune(
    *,
    folder: given.TopologyFolder = None,
    url: given.Url = given.DEFAULT_URL,
    management_url: given.ManagementUrl = None,
    ca_file: given.CaFile = None,
    yes: Yes = False,
    as_json: given.AsJson = False,
) -> None:
    """Delete retired tiers that are empty and that nothing leads to; the others are kept, with the reason.

    It asks before it deletes, and names the topology that it goes by.
    """
    place = _Place.read(given.topology_from(folder), given.address_from(url, management_url, ca_file))
    place.introduce(as_json=as_json)
    names = prunable(place.expected, place.live)
    if names:
        place.ask(f"This deletes {_named(names)}.", yes=yes)
    with waiting("Making sure that they stay empty", quiet=as_json):
        done = prune_topology(place.topology, place.address, only=None if yes else names)
    if as_json:
        print_json(place.json | {"deleted": list(done.deleted), "kept": done.kept})
        return
    for name in done.deleted:
        line(f"{name} deleted", "✓", "bold green")
    for name, reason in done.kept.items():
        line(f"{name} kept: {reason}", "·", "bold yellow")
    if not done.deleted and not done.kept:
        line("Nothing is left over.", "✓", "bold green")


@dataclass(frozen=True, slots=True)
class _Place:
    """A topology and a broker, and whether the one was applied to the other."""

    topology: Topology
    address: Address
    expected: Expected
    live: Live
    warnings: list[Finding]

    @classmethod
    def read(cls, topology: Topology, address: Address) -> _Place:
        expected, live = Expected.of(topology, address.vhost), read_live(Management(address))
        return cls(topology, address, expected, live, list(check_applied(expected, live)))

    def introduce(self, *, as_json: bool) -> None:
        if not as_json:
            view.print_source(self.topology)
            view.print_warnings(self.warnings)

    def ask(self, what: str, *, yes: bool) -> None:
        """The question names both topologies where they differ: tiers of the other one are not left over."""
        other = "".join(f" It {warning.problem}." for warning in self.warnings)
        confirm(f"{what} Topology: {described(self.topology)}.{other}", yes=yes, why="There is no terminal to ask on")

    @property
    def json(self) -> view.Json:
        return view.source_json(self.topology, self.live.applied(self.expected.names), self.warnings)


def _named(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _news(left: int, seconds: float) -> str:
    return f"{counted(left, 'message')} left, {humanise(seconds * 1000)} at most"


def _answer(as_json: bool, data: dict[str, object], text: str) -> None:
    if as_json:
        print_json(data)
    else:
        line(text, "✓", "bold green")
