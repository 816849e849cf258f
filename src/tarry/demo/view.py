"""The demo on a screen, or line by line where there is none."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tarry.audit.records import Balance, Drift
from tarry.core.durations import humanise
from tarry.demo.scene import SHOWN, Scene
from tarry.demo.workload import PLAN, QUEUE, Tally

BAR = 24


def screen(scene: Scene, tally: Tally, where: str) -> RenderableType:
    """Everything at once, drawn anew a few times a second."""
    return Group(
        Text.assemble((" tarry demo ", "reverse bold"), f"  {where}"),
        Text.assemble(
            f" {tally.sent} of {sum(PLAN.values())} invoices sent to ",
            (QUEUE, "bold"),
            f", {tally.done} done, {tally.rejected} rejections, {scene.balance.in_review} in review",
        ),
        Columns([Panel(_tiers(scene), title="tiers"), Panel(_review(scene), title="manual review")]),
        Panel(_waiting(scene), title="waiting, the next to return first"),
    )


def _tiers(scene: Scene) -> Table:
    table = Table(box=None, padding=(0, 1))
    table.add_column("queue")
    table.add_column("depth", justify="right")
    table.add_column("")
    for name, depth in [*scene.tiers, ("ladder, 125–875 ms", scene.ladder)]:
        table.add_row(name, str(depth), Text("█" * min(depth, BAR), style="cyan"))
    return table


def _waiting(scene: Scene) -> Table:
    table = Table(box=None, padding=(0, 1))
    for column in ("message", "for", "attempt", "tier", "returns in"):
        table.add_column(column)
    now = datetime.now(UTC)
    for one in scene.waiting:
        left = max(0.0, (one.due - now).total_seconds() * 1000)
        table.add_row(one.message, one.queue, f"{one.attempt} of {one.most}", one.tier, humanise(left))
    if not scene.waiting:
        table.add_row("nothing waits", "", "", "", "")
    return _steady(table)


def _review(scene: Scene) -> Table:
    table = Table(box=None, padding=(0, 1))
    table.add_column("message")
    table.add_column("why")
    for one in scene.in_review:
        table.add_row(one.message, Text(one.reason, style="yellow"))
    if not scene.in_review:
        table.add_row("nothing yet", "")
    return _steady(table)


def _steady(table: Table) -> Table:
    """As high as it can get, so that the picture does not jump."""
    while table.row_count < SHOWN:
        table.add_row()
    return table


def line(scene: Scene, tally: Tally) -> str:
    """The same in one plain line."""
    depths = " ".join(f"{name.rpartition('.')[2]}:{depth}" for name, depth in scene.tiers)
    soon = scene.waiting[0] if scene.waiting else None
    until = f"; next {soon.message} for {soon.queue} at {soon.due:%H:%M:%S}" if soon else ""
    return (
        f"sent {tally.sent}, done {tally.done}, in review {scene.review}; "
        f"waiting {scene.balance.waiting} (tiers {depths} ladder:{scene.ladder}){until}"
    )


def summary(console: Console, balance: Balance, drift: Drift, tally: Tally) -> None:
    """The books at the end."""
    table = Table(title="The audit's balance", title_justify="left", box=None, padding=(0, 2))
    table.add_column("")
    table.add_column("", justify="right")
    rows = {
        "retries (messages that failed)": balance.retries,
        "rounds scheduled": balance.scheduled,
        "rounds returned": balance.returned,
        "still waiting": balance.waiting,
        "in review": balance.in_review,
        "duplicates": balance.duplicates,
        "lost": balance.lost,
    }
    for name, number in rows.items():
        style = ("bold green" if not number else "bold red") if name == "lost" else ""
        table.add_row(Text(name, style=style), Text(str(number), style=style))
    console.print(table)
    attempts = ", ".join(f"{count} at attempt {attempt + 1}" for attempt, count in sorted(tally.by_attempt.items()))
    console.print(f"  succeeded: {tally.done} ({attempts})")
    console.print(
        f"  drift of {drift.count} returns: p50 {drift.p50} ms, p99 {drift.p99} ms, most {drift.most} ms; "
        f"earliest {drift.least:+} ms after due"
    )
    console.print(
        f"  balance: scheduled {balance.scheduled}, returned {balance.returned}, "
        f"in review {balance.in_review}, lost {balance.lost}"
    )
