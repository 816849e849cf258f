"""`tarry status`: how things stand right now."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import typer

from tarry.attach.listing import Attachment, State, attachments
from tarry.attach.report import state_report
from tarry.attach.survey import read_survey
from tarry.audit.depths import Depths, read_depths
from tarry.audit.report import Report
from tarry.audit.status import Counts, InTier, PausedNow, read_counts, read_paused, read_tiers
from tarry.broker.management import Management
from tarry.cli.installation import BrokerUrl, DatabaseUrl, Installation, installation
from tarry.cli.options import AsJson, CaFile, ManagementUrl, TopologyFolder
from tarry.cli.output import line, note, print_error, print_json, print_table, table
from tarry.cli.printable import printable, shortened
from tarry.cli.topology_view import print_source, topology_json
from tarry.core.durations import humanise
from tarry.errors import AuditError, BrokerError, TarryError
from tarry.topology.model import Topology


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(
    *,
    database_url: DatabaseUrl = None,
    topology: TopologyFolder = None,
    url: BrokerUrl = None,
    management_url: ManagementUrl = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """What waits in which tier, what is due next, what is in review, what is overdue, which attachment is broken."""
    where = installation(database_url, topology, url, management_url, ca_file, only_looks=True)
    troubles: list[TarryError] = []
    depths = _depths(where, troubles)
    with ExitStack() as stack:
        books = _books(where, stack, troubles)
        counts = read_counts(books) if books else None
        tiers = read_tiers(books, depths)
        paused = read_paused(books) if books else []
    queues = _queues(where, depths)
    attached = _attached(where, troubles) if depths else []
    if as_json:
        about = {"topology": topology_json(where.files) if isinstance(where.files, Topology) else None}
        more = {"paused": [_paused(one) for one in paused], "attachments": [state_report(one) for one in attached]}
        print_json(about | _report(counts, tiers, queues, troubles) | more)
    else:
        if isinstance(where.files, Topology):
            print_source(where.files)
        _show(counts, tiers, queues)
        _show_attached(attached)
        _show_paused(paused)
        for trouble in troubles:
            print_error(trouble)
    if troubles:
        raise typer.Exit(1)


def _depths(where: Installation, troubles: list[TarryError]) -> Depths | None:
    try:
        return read_depths(Management(where.address), where.names)
    except BrokerError as error:
        troubles.append(error)
        return None


def _attached(where: Installation, troubles: list[TarryError]) -> list[Attachment]:
    try:
        return attachments(read_survey(Management(where.address), where.names))
    except BrokerError as error:
        troubles.append(error)
        return []


def _books(where: Installation, stack: ExitStack, troubles: list[TarryError]) -> Report | None:
    try:
        books = stack.enter_context(where.books())
        read_counts(books)
    except AuditError as error:
        troubles.append(error)
        return None
    return books


def _queues(where: Installation, depths: Depths | None) -> dict[str, int]:
    """The queues that somebody reads: a backlog there is somebody's business."""
    names = where.names
    read = (names.scheduled, names.audit, names.review_queue, names.unroutable, names.cancelled)
    return {name: depths[name].messages for name in read} if depths else {}


def _show(counts: Counts | None, tiers: list[InTier], queues: dict[str, int]) -> None:
    now = datetime.now(UTC)
    if tiers:
        shown = table(
            "tiers", "queue", "open", "depth", "oldest", "next due", right=("open", "depth"), copied=("queue",)
        )
        for tier in tiers:
            numbers = ("?" if number is None else f"{number:,}" for number in (tier.open, tier.depth))
            shown.add_row(tier.tier, *numbers, _ago(tier.oldest, now), _ahead(tier.next_due, now))
        print_table(shown)
    if queues:
        shown = table("queues", "queue", "messages", right=("messages",), copied=("queue",))
        for name, number in queues.items():
            shown.add_row(name, f"{number:,}")
        print_table(shown)
    if counts is not None:
        line(
            f"waiting {counts.waiting:,}: due in the next minute {counts.due_in_a_minute:,}, "
            f"in the next hour {counts.due_in_an_hour:,}"
        )
        line(f"in review {counts.in_review:,}, held {counts.held:,}, unroutable {counts.unroutable:,}")
        line(f"overdue {counts.overdue:,}", *(("✗", "red") if counts.overdue else ("✓", "green")))


def _show_attached(attached: list[Attachment]) -> None:
    """All that is not as attach made it, each with the command that mends it."""
    wrong = [one for one in attached if one.state is not State.OK]
    if attached and not wrong:
        line(f"attached {len(attached):,}, all in effect", "✓", "green")
    for one in wrong:
        mark = ("✗", "red") if one.state.may_lose_rejects else ("!", "yellow")
        line(f"{one.destination.kind} {one.destination.name}: {one.state}: {one.detail}", *mark)


def _show_paused(paused: list[PausedNow]) -> None:
    now = datetime.now(UTC)
    for one in paused:
        state = "being released" if one.state == "releasing" else "paused"
        since = humanise(max(0.0, (now - one.since).total_seconds() * 1000))
        held = f", {one.held:,} held" if one.held is not None else ""
        about = f" ({shortened(one.about, 100)})" if one.about else ""
        line(f"{printable(one.what)}: {state} for {since}{held}{about}", "‖", "yellow")
    if paused:
        note("who, why and until when: tarry holds")


def _paused(one: PausedNow) -> dict[str, Any]:
    return asdict(one) | {"since": one.since.isoformat()}


def _ago(at: datetime | None, now: datetime) -> str:
    return "" if at is None else f"{humanise(max(0.0, (now - at).total_seconds() * 1000))} ago"


def _ahead(at: datetime | None, now: datetime) -> str:
    if at is None:
        return ""
    left = (at - now).total_seconds() * 1000
    return f"in {humanise(left)}" if left >= 0 else f"{humanise(-left)} ago"


def _report(
    counts: Counts | None, tiers: list[InTier], queues: dict[str, int], troubles: list[TarryError]
) -> dict[str, Any]:
    def moment(at: datetime | None) -> str | None:
        return at.isoformat() if at else None

    return {
        "books": asdict(counts) if counts else None,
        "tiers": [asdict(tier) | {"oldest": moment(tier.oldest), "next_due": moment(tier.next_due)} for tier in tiers],
        "queues": queues,
        "troubles": [str(trouble) for trouble in troubles],
    }
