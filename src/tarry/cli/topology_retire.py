"""`tarry topology drain` and `prune`: remove retired tiers, after a confirmation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from tarry.amqp.management import Management
from tarry.amqp.url import Address
from tarry.cli import options as given
from tarry.cli import topology_view as view
from tarry.cli.output import confirm, line, note, print_json, waiting
from tarry.core.durations import humanise
from tarry.topology.checks.files import check_applied
from tarry.topology.expected import Expected
from tarry.topology.findings import Finding
from tarry.topology.live import Live, read_live
from tarry.topology.model import Topology
from tarry.topology.plan import counted
from tarry.topology.record import described
from tarry.topology.retire import close_entry, drainable, prunable
from tarry.topology.retire import drain as drain_tier
from tarry.topology.retire import prune as prune_topology

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation. Required without a terminal.")]

MOST_NAMED = 10


def register(app: typer.Typer) -> None:
    app.command()(drain)
    app.command()(prune)


def drain(
    tier: Annotated[str, typer.Argument(help="The queue of a tier that no policy uses.")],
    *,
    folder: given.TopologyFolder = None,
    url: given.Url = given.DEFAULT_URL,
    management_url: given.ManagementUrl = None,
    ca_file: given.CaFile = None,
    wait: Annotated[
        bool, typer.Option(help="Wait until it is empty and delete it; otherwise `prune` deletes it later.")
    ] = True,
    yes: Yes = False,
    as_json: given.AsJson = False,
) -> None:
    """Drain a retired tier and delete its queue.

    Nothing enters the tier any more; each message leaves when it is due. Asks first, and names the topology it uses.
    """
    place = _Place.read(given.topology_from(folder), given.address_from(url, management_url, ca_file))
    drainable(place.expected, place.live, tier)
    place.introduce(as_json=as_json)
    messages = counted(place.live.depths.get(tier, 0), "message")
    then = "deletes it once it is empty" if wait else "lets it drain"
    place.ask(f"This closes the entry of {tier} ({messages}) and {then}.", yes=yes)
    close_entry(place.topology, place.address, tier)
    if not wait:
        _answer(as_json, place.json | {"drained": tier, "deleted": False}, f"Nothing enters {tier} any more.")
        return
    note(f"Nothing enters {tier} any more; waiting until it is empty. Ctrl-C is safe: `prune` deletes it later.")
    with waiting(f"Draining {tier}", quiet=as_json) as update:
        drain_tier(place.topology, place.address, tier, lambda left, seconds: update(_progress(left, seconds)))
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
    """Delete retired tiers that are empty and unreachable.

    Lists the others with the reason. Asks before it deletes, and names the topology it uses.
    """
    place = _Place.read(given.topology_from(folder), given.address_from(url, management_url, ca_file))
    place.introduce(as_json=as_json)
    names = prunable(place.expected, place.live)
    if names:
        place.ask(f"This deletes {_named(names)}.", yes=yes)
    with waiting("Checking that they stay empty", quiet=as_json):
        done = prune_topology(place.topology, place.address, only=None if yes else names)
    if as_json:
        print_json(place.json | {"deleted": list(done.deleted), "kept": done.kept})
        return
    for name in done.deleted:
        line(f"{name} deleted", "✓", "bold green")
    for name, reason in done.kept.items():
        line(f"{name} kept: {reason}", "·", "bold yellow")
    if not done.deleted and not done.kept:
        line("There are no retired tiers.", "✓", "bold green")


@dataclass(frozen=True, slots=True)
class _Place:
    """A topology and a broker, and whether it was applied there."""

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
        """The question names both topologies where they differ: tiers of the applied one are not retired."""
        other = "".join(f" It {warning.problem}." for warning in self.warnings)
        confirm(
            f"{what} Topology: {described(self.topology)}.{other}",
            yes=yes,
            why="There is no terminal for a confirmation",
        )

    @property
    def json(self) -> view.Json:
        return view.source_json(self.topology, self.live.applied(self.expected.names), self.warnings)


def _named(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _progress(left: int, seconds: float) -> str:
    return f"{counted(left, 'message')} left, {humanise(seconds * 1000)} at most"


def _answer(as_json: bool, data: dict[str, object], text: str) -> None:
    if as_json:
        print_json(data)
    else:
        line(text, "✓", "bold green")
