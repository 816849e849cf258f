"""What the commands on retries and destinations show."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tarry.cli.output import line, note, print_table, table
from tarry.cli.printable import printable, shortened
from tarry.control.cancel import Diverted
from tarry.control.held import Held, Holds, Wish
from tarry.control.holds import Paused, Resumed
from tarry.core.durations import humanise

LONGEST = 60

ANSWERS = {
    "cancelled": ("✓", "green", "cancelled: it will not return"),
    "retried": ("✓", "green", "sent now"),
    "pending": ("…", "yellow", "asked for, and no word of it yet: the service goes on with it"),
}


def show_diverted(answers: Sequence[Diverted]) -> None:
    for one in answers:
        mark, style, text = ANSWERS[one.answer]
        name = printable(one.message_id) if one.message_id else one.retry_id
        line(f"{name} (queue {printable(one.queue)}, round {one.round}): {text}", mark, style)


def show_paused(answer: Paused) -> None:
    until = f" until {_moment(answer.until)}" if answer.until else ""
    if answer.destinations:
        for name in answer.destinations:
            line(f"{printable(name)} is held{until}", "✓", "green")
    else:
        line(f"nothing matches {printable(answer.pattern)} yet; what appears is held{until}", "✓", "green")
    for name, problem in answer.problems.items():
        line(f"{printable(name)}: {problem}", "✗", "red")
    note(f"resume with: tarry resume '{printable(answer.pattern)}'")


def show_resumed(answer: Resumed) -> None:
    how = f"at {answer.rate}/s" + (" after canaries of 1, 10 and 100" if answer.canary else "")
    for name in answer.destinations:
        line(f"{printable(name)}: what is held goes home {how}", "✓", "green")
    if not answer.destinations:
        line("nothing was held; what appears from now on goes home", "✓", "green")
    note("the service does it; see `tarry holds` for how far it is")


def show_holds(found: Holds) -> None:
    if found.intake.note:
        line(found.intake.note, "✗", "yellow")
    if not found.holds and not found.pauses:
        line("nothing is paused", "✓", "green")
        return
    if found.holds:
        _show_table(found.holds)
    for hold in found.holds:
        _show_hold(hold)
    for one in found.pauses:
        if not any(one in hold.pauses for hold in found.holds):
            line(f"{printable(one.pattern)}: nothing matches yet; {_by(one)}")


def _show_table(holds: Sequence[Held]) -> None:
    columns = ("destination", "state", "since", "held", "by the books", "released")
    shown = table("holds", *columns, right=("held", "by the books", "released"), copied=("destination",))
    for hold in holds:
        depth = "?" if hold.depth is None else f"{hold.depth:,}"
        numbers = (depth, f"{hold.held:,}", f"{hold.released:,}")
        shown.add_row(printable(hold.destination), hold.state.replace("_", " "), _ago(hold.since), *numbers)
    print_table(shown)


def _show_hold(hold: Held) -> None:
    """How its release goes, who paused it and why, and what is wrong."""
    name = printable(hold.destination)
    if hold.state == "releasing":
        eta = f", {humanise(hold.eta_s * 1000)} to go" if hold.eta_s else ""
        line(f"{name}: releasing {hold.stage} at {hold.rate}/s{eta}")
    for one in hold.pauses:
        line(f"{name}: {_by(one)}")
    if hold.problem:
        line(f"{name}: {hold.problem}", "✗", "yellow")


def _by(wish: Wish) -> str:
    why = f": {shortened(wish.reason, LONGEST)}" if wish.reason else ""
    until = f", until {_moment(wish.until)}" if wish.until else ""
    return f"paused by {printable(wish.actor)} {_ago(wish.at)}{until}{why}"


def _ago(at: datetime) -> str:
    return f"{humanise(max(0.0, (datetime.now(UTC) - at).total_seconds() * 1000))} ago"


def _moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def plain(value: Any) -> Any:
    """For JSON: moments as ISO 8601, durations as seconds."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return value.total_seconds() if isinstance(value, timedelta) else value
