"""`tarry status`: the current state of the installation."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import typer

from tarry.attach.listing import AttachmentState
from tarry.audit.status import Counts, InTier, PausedNow, RouterStatus
from tarry.cli.operator_command import operator_command
from tarry.cli.options import AsJson
from tarry.cli.output import line, note, print_error, print_json, print_table, shortened, table
from tarry.cli.topology_view import topology_source_json
from tarry.core.durations import humanise
from tarry.core.printable import printable
from tarry.events.lag import SHOWN_FROM, EventsStatus
from tarry.operations.protocol import Operations
from tarry.operations.status import AttachmentStatus, ServiceStatus


def register(app: typer.Typer) -> None:
    app.command("status")(operator_command(status, only_looks=True))


async def status(*, operations: Operations, as_json: AsJson = False) -> None:
    """Show what waits, is overdue, in review or paused; attachments; and the routers.

    Exits 1 if something could not be read.
    """
    found = await operations.status()
    if as_json:
        print_json(status_report(found))
    else:
        if found.topology is not None:
            line(f"Topology: {found.topology}")
        _show(found.audit, found.tiers, found.queues)
        _show_attached(found.attachments)
        _show_paused(found.paused)
        _show_events(found.events)
        for anomaly in found.anomalies:
            line(f"{printable(anomaly.describe())}, since {_ago(anomaly.since, datetime.now(UTC))}", "!", "yellow")
        _show_routers(found.routers)
        for problem in found.troubles:
            print_error(problem)
    if found.troubles:
        raise typer.Exit(1)


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
        if counts.skipped_in_a_day:
            line(f"skipped in the last 24 hours {counts.skipped_in_a_day:,}")
        line(f"due and not back {counts.due:,}")
        line(f"overdue {counts.overdue:,}", *(("✗", "red") if counts.overdue else ("✓", "green")))


def _show_attached(attached: list[AttachmentStatus]) -> None:
    """Attachments that have changed, each with the command that repairs it."""
    wrong = [one for one in attached if one.state is not AttachmentState.OK]
    if attached and not wrong:
        line(f"attached {len(attached):,}, all in effect", "✓", "green")
    for one in wrong:
        mark = ("✗", "red") if one.state.may_lose_rejects else ("!", "yellow")
        line(f"{one.kind} {one.name}: {one.state}: {one.detail}", *mark)


def _show_paused(paused: list[PausedNow]) -> None:
    now = datetime.now(UTC)
    for one in paused:
        state = {"releasing": "being released", "throttled": "throttled"}.get(one.state, "paused")
        since = humanise(max(0.0, (now - one.since).total_seconds() * 1000))
        held = f", {one.held:,} held" if one.held is not None else ""
        about = f" ({shortened(one.about, 100)})" if one.about else ""
        line(f"{printable(one.what)}: {state} for {since}{held}{about}", "‖", "yellow")
    if paused:
        note("who, why and until when: tarry pauses")


def _show_events(events: EventsStatus | None) -> None:
    if events is None:
        return
    if events.lag_s < SHOWN_FROM:
        line(f"events published {events.published:,}", "✓", "green")
    else:
        line(printable(events.describe()), "!", "yellow")


def _show_routers(routers: list[RouterStatus]) -> None:
    now = datetime.now(UTC)
    if routers:
        shown = table(
            "routers", "router", "version", "started", "requests/s", "", right=("requests/s",), copied=("router",)
        )
        for one in routers:
            shown.add_row(one.id, one.version, _ago(one.since, now), f"{one.rate:,.1f}", _role(one))
        print_table(shown)
    for one in routers:
        if not one.reports:
            line(f"{one.id} stopped reporting {_ago(one.last_report, now)}", "✗", "red")
        for trouble in one.troubles:
            line(f"{one.id}: {printable(trouble)}", "!", "yellow")


def _role(one: RouterStatus) -> str:
    if not one.reports:
        return "stopped reporting"
    return "leader" if one.leader else ""


def _ago(at: datetime | None, now: datetime) -> str:
    return "" if at is None else f"{humanise(max(0.0, (now - at).total_seconds() * 1000))} ago"


def _ahead(at: datetime | None, now: datetime) -> str:
    if at is None:
        return ""
    left = (at - now).total_seconds() * 1000
    return f"in {humanise(left)}" if left >= 0 else f"{humanise(-left)} ago"


def status_report(found: ServiceStatus) -> dict[str, Any]:
    def moment(at: datetime | None) -> str | None:
        return at.isoformat() if at else None

    tiers = [asdict(tier) | {"oldest": moment(tier.oldest), "next_due": moment(tier.next_due)} for tier in found.tiers]
    return {
        "topology": topology_source_json(found.topology) if found.topology else None,
        "audit": asdict(found.audit) if found.audit else None,
        "tiers": tiers,
        "queues": found.queues,
        "troubles": found.troubles,
        "paused": [asdict(one) | {"since": moment(one.since)} for one in found.paused],
        "attachments": [asdict(one) for one in found.attachments],
        "events": _events(found.events),
        "anomalies": [asdict(one) | {"since": moment(one.since)} for one in found.anomalies],
        "routers": [
            asdict(one) | {"since": moment(one.since), "last_report": moment(one.last_report)} for one in found.routers
        ],
    }


def _events(events: EventsStatus | None) -> dict[str, Any] | None:
    if events is None:
        return None
    holder = events.held_up_by
    since = holder.since.isoformat() if holder and holder.since else None
    return asdict(events) | {"held_up_by": asdict(holder) | {"since": since} if holder else None}
