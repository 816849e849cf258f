"""Output of the commands on retries and destinations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tarry.cli.output import line, note, print_table, shortened, table
from tarry.core.durations import humanise
from tarry.core.printable import printable
from tarry.operations.cancel import Diverted
from tarry.operations.pause import DestinationPause, Paused, Pauses, PauseView, ReleaseOptions, Resumed, gate_of
from tarry.operations.paused_destination import command_arguments
from tarry.operations.retry_now import Retried
from tarry.operations.throttle import Throttled, ThrottleView, Unthrottled

LONGEST = 60

ANSWERS = {
    "cancelled": ("✓", "green", "cancelled: it will not return"),
    "retried": ("✓", "green", "sent now"),
    "pending": ("…", "yellow", "requested; the outcome is not known yet, and the service continues"),
}


def show_diverted(answers: Sequence[Diverted | Retried]) -> None:
    for one in answers:
        mark, style, text = ANSWERS[one.answer]
        if isinstance(one, Retried) and one.answer == "retried" and one.position is not None:
            text += f"; about {one.position:,} messages are ready ahead of it"
        name = printable(one.message_id) if one.message_id else one.retry_id
        line(f"{name} (queue {printable(one.queue)}, round {one.round}): {text}", mark, style)


def show_paused(answer: Paused) -> None:
    end = until(answer.until)
    if answer.scope == "stuck-recovery":
        line(f"the recovery of stuck messages is paused{end}", "✓", "green")
    elif answer.destinations:
        verb = "are" if answer.scope == "automatic-retries" else "is"
        for name in answer.destinations:
            line(f"{printable(name)} {verb} paused{end}", "✓", "green")
    elif not answer.problems:
        line(f"nothing matches {printable(answer.pattern)} yet; destinations that appear are paused{end}", "✓", "green")
    for name, problem in answer.problems.items():
        line(f"{printable(name)}: {problem}", "✗", "red")
    if answer.without_key:
        line(_without_key(answer), "!", "yellow")
    note(f"resume with: tarry resume {_arguments(answer)}")


def until(at: datetime | None) -> str:
    return f" until {_moment(at)}" if at else ""


def _without_key(answer: Paused) -> str:
    """Names what the pause does not hold."""
    number = f"{answer.without_key:,} waiting {'retry' if answer.without_key == 1 else 'retries'}"
    which = f"{number} of this policy" if answer.scope == "policy" else number
    may_be = " (of any job type: theirs is not known)" if answer.scope == "job-type" else ""
    return f"{which} will return in spite of the pause{may_be}: an earlier version scheduled them, without the key"


def _arguments(answer: Paused) -> str:
    gate = gate_of(answer.scope, answer.pattern)
    if gate is not None:
        return printable(command_arguments(gate))
    return f"'{printable(answer.pattern)}'" if answer.scope == "queue" else f"--type {answer.scope}"


def show_resumed(answer: Resumed) -> None:
    how = f"at {answer.rate}/s" + (" after canaries of 1, 10 and 100" if answer.canary else "")
    for name in answer.destinations:
        limit = f", but at most {answer.throttled[name]}/s: it is throttled" if name in answer.throttled else ""
        line(f"{printable(name)}: releasing held messages {how}{limit}", "✓", "green")
    if answer.scope == "stuck-recovery":
        line("stuck messages are recovered again", "✓", "green")
        return
    for name, state in answer.breakers.items():
        line(f"{printable(name)}: stays held, its breaker is {state.replace('_', '-')}", "!", "yellow")
    if not answer.destinations and not answer.breakers:
        line("nothing was held; messages return as usual from now on", "✓", "green")
    note("the service releases them; `tarry pauses` shows the progress")


def show_throttled(answer: Throttled) -> None:
    end = until(answer.until)
    for name, rate in answer.destinations.items():
        lower = f" (a lower limit than {answer.rate}/s applies)" if rate < answer.rate else ""
        line(f"{printable(name)}: at most {rate} returns a second{end}{lower}", "✓", "green")
    if not answer.destinations and not answer.problems:
        line(
            f"nothing matches {printable(answer.pattern)} yet; destinations that appear are throttled{end}",
            "✓",
            "green",
        )
    for name, problem in answer.problems.items():
        line(f"{printable(name)}: {problem}", "✗", "red")
    note(f"end with: tarry unthrottle '{printable(answer.pattern)}'")


def show_unthrottled(answer: Unthrottled) -> None:
    for name in answer.destinations:
        line(f"{printable(name)}: no limit any more; what waits is released", "✓", "green")
    for name, rate in answer.still_throttled.items():
        line(f"{printable(name)}: still at most {rate} returns a second, by another limit", "!", "yellow")
    if not answer.destinations and not answer.still_throttled:
        line("nothing was throttled yet; messages return as usual", "✓", "green")


def show_pause_list(found: Pauses) -> None:
    if found.intake.note:
        line(found.intake.note, "✗", "yellow")
    if not found.paused_destinations and not found.pauses and not found.throttles:
        line("nothing is paused", "✓", "green")
        return
    if found.paused_destinations:
        _show_table(found.paused_destinations)
    for paused in found.paused_destinations:
        _show_destination(paused)
    for one in found.pauses:
        if not any(one in paused.pauses for paused in found.paused_destinations):
            nothing_yet = "nothing matches yet; " if one.scope == "queue" else ""
            line(f"{printable(one.target)}: {nothing_yet}{_by(one)}")
    for limit in found.throttles:
        if not any(limit in paused.throttles for paused in found.paused_destinations):
            line(f"{printable(limit.pattern or '')}: nothing matches yet; {_limit(limit)}")


def _show_table(paused_destinations: Sequence[DestinationPause]) -> None:
    columns = ("destination", "state", "since", "held", "in audit", "released")
    shown = table("paused destinations", *columns, right=("held", "in audit", "released"), copied=("destination",))
    for paused in paused_destinations:
        depth = "?" if paused.depth is None else f"{paused.depth:,}"
        numbers = (depth, f"{paused.held:,}", f"{paused.released:,}")
        shown.add_row(printable(paused.destination), paused.state.replace("_", " "), _ago(paused.since), *numbers)
    print_table(shown)


def _show_destination(paused: DestinationPause) -> None:
    """The progress of its release, who paused it and why, and any problem."""
    name = printable(paused.destination)
    if paused.state == "releasing":
        eta = f", {humanise(paused.eta_s * 1000)} left" if paused.eta_s else ""
        line(f"{name}: releasing {paused.stage} at {paused.rate}/s{eta}")
    if paused.state == "throttled" and paused.depth:
        line(f"{name}: {paused.depth:,} wait, for up to {humanise((paused.eta_s or 0) * 1000)}")
    for one in paused.pauses:
        line(f"{name}: {_by(one)}")
    for limit in paused.throttles:
        line(f"{name}: {_limit(limit)}")
    if paused.problem:
        line(f"{name}: {paused.problem}", "✗", "yellow")


def _by(pause: PauseView) -> str:
    why = f": {shortened(pause.reason, LONGEST)}" if pause.reason else ""
    end = f", until {_moment(pause.until)}{_released(pause)}" if pause.until else ""
    if pause.scope == "breaker":
        return f"held by its breaker, which opened {_ago(pause.at)}{why}; see tarry breakers"
    return f"paused by {printable(pause.actor)} {_ago(pause.at)}{end}{why}"


def _limit(limit: ThrottleView) -> str:
    if limit.policy is not None:
        return f"throttled to {limit.rate}/s by max_rate of policy {printable(limit.policy)}"
    why = f": {shortened(limit.reason, LONGEST)}" if limit.reason else ""
    end = f", until {_moment(limit.until)}" if limit.until else ""
    ago = f" {_ago(limit.at)}" if limit.at else ""
    return f"throttled to {limit.rate}/s by {printable(limit.actor or '')}{ago}{end}{why}"


def _released(pause: PauseView) -> str:
    """How messages are released when the pause expires, unless as by default."""
    if pause.at_end is None or pause.at_end == ReleaseOptions():
        return ""
    return f" (then released at {pause.at_end.rate}/s{' after canaries' if pause.at_end.canary else ''})"


def _ago(at: datetime) -> str:
    return f"{humanise(max(0.0, (datetime.now(UTC) - at).total_seconds() * 1000))} ago"


def _moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def plain(value: Any) -> Any:
    """For JSON: times as ISO 8601, durations as seconds."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return value.total_seconds() if isinstance(value, timedelta) else value
