"""Reads and displays the state of a running installation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from pika.adapters.blocking_connection import BlockingChannel
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tarry.audit.status import read_balance, read_in_review, read_waiting
from tarry.core.durations import humanise
from tarry.demo.workload import PLAN, QUEUE, Tally
from tarry.store.database import PostgresSession
from tarry.store.rows import Balance, Drift, ReviewedRow, WaitingRow
from tarry.topology.model import Topology

SHOWN = 8
"""The maximum number of lines of each list."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The state at one moment: depths from the broker, the rest from the audit."""

    tiers: list[tuple[str, int]]
    ladder: int
    review: int
    waiting: list[WaitingRow]
    in_review: list[ReviewedRow]
    balance: Balance


async def look(topology: Topology, channel: BlockingChannel, session: PostgresSession) -> Scene:
    """The current state. Queue depths come from the broker, not from the audit."""
    # Not in a thread: nothing else runs in this event loop, and the channel is closed as soon as the demo is stopped.
    tiers, ladder, review = _depths(topology, channel)
    return Scene(
        tiers=tiers,
        ladder=ladder,
        review=review,
        waiting=await read_waiting(session, SHOWN),
        in_review=await read_in_review(session, SHOWN),
        balance=await read_balance(session),
    )


def _depths(topology: Topology, channel: BlockingChannel) -> tuple[list[tuple[str, int]], int, int]:
    """Of each tier of the demo's policy, of the lowest ladder level, and of the review queue."""
    names, ladder = topology.broker_names, topology.ladder_shape
    policy = next(one for one in topology.rules.policies if one.match.fits(QUEUE, None, None))
    tiers = sorted(policy.tiers())[: max(policy.max_retries, 1)]
    steps = [names.ladder_queue(0, ladder.ttl(0, digit), policy.lane) for digit in range(1, ladder.radix)]
    queues = [names.tier(ms, policy.lane) for ms in tiers]
    return (
        [(queue, _depth(channel, queue)) for queue in queues],
        sum(_depth(channel, step) for step in steps),
        _depth(channel, names.review_queue),
    )


def _depth(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


BAR = 24


def screen(scene: Scene, tally: Tally, where: str) -> RenderableType:
    """The whole display; it is redrawn a few times per second."""
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
        table.add_row("nothing is waiting", "", "", "", "")
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
    """Pads the table to its maximum height, so that the display does not jump."""
    while table.row_count < SHOWN:
        table.add_row()
    return table


def line(scene: Scene, tally: Tally) -> str:
    """The same state in one plain line."""
    depths = " ".join(f"{name.rpartition('.')[2]}:{depth}" for name, depth in scene.tiers)
    soon = scene.waiting[0] if scene.waiting else None
    until = f"; next {soon.message} for {soon.queue} at {soon.due:%H:%M:%S}" if soon else ""
    return (
        f"sent {tally.sent}, done {tally.done}, in review {scene.review}; "
        f"waiting {scene.balance.waiting} (tiers {depths} ladder:{scene.ladder}){until}"
    )


def summary(console: Console, balance: Balance, drift: Drift, tally: Tally) -> None:
    """The audit's balance at the end."""
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
