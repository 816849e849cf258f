"""Output of `tarry audit`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tarry.audit.recover import Recovered
from tarry.audit.status import AttemptOutcomes
from tarry.audit.verdict import AuditVerdict, Missing, Open
from tarry.cli.output import line, note, print_table, table
from tarry.operations.audit import TierTotals
from tarry.store.rows import Balance

COPIED = ("retry id", "message", "queue")
SHOWN = 50
"""Maximum lines of a list; the rest is counted. JSON lists all."""


def balance_report(balance: Balance) -> dict[str, int]:
    return asdict(balance) | {"requests": balance.requests, "lost": balance.lost}


def show_balance(balance: Balance) -> None:
    """The equation, term by term, and its total."""
    shown = table("balance", "what", "number", right=("number",))
    terms = ("returned", "unseen", "waiting", "held", "in_review", "cancelled", "discarded", "skipped", "unroutable")
    shown.add_row("requests seen", f"{balance.requests:,}")
    for name in (*terms, "claimed", "duplicates"):
        number = getattr(balance, name)
        if number or name in ("returned", "waiting", "in_review"):
            shown.add_row(f"  {_WORDS.get(name, name)}", f"{number:,}")
    for name in ("overdue", "recovered", "twice"):
        if getattr(balance, name):
            shown.add_row(_WORDS[name], f"{getattr(balance, name):,}")
    print_table(shown)


def show_attempts(found: Sequence[AttemptOutcomes]) -> None:
    """One line for each attempt."""
    if not found:
        return line("nothing returned in this time")
    numbers = ("attempt", "returned", "success", "presumed", "failed", "success rate")
    shown = table("attempts", *numbers, right=numbers)
    for one in found:
        rate = "" if one.success_rate is None else f"{one.success_rate:g} %"
        shown.add_row(*(f"{n:,}" for n in (one.attempt, one.returned, one.success, one.presumed, one.failed)), rate)
    return print_table(shown)


_WORDS = {
    "unseen": "returned, not seen by the tap",
    "in_review": "in review",
    "claimed": "being moved",
    "overdue": "of them overdue",
    "recovered": "of them recovered",
    "twice": "copies that returned a second time",
}


def verdict_report(verdict: AuditVerdict) -> dict[str, Any]:
    return {
        "missing": [
            _open(one.retry) | {"why": one.why, "rebuildable": one.retry.rebuildable} for one in verdict.missing
        ],
        "shortages": [asdict(one) | {"missing": one.missing} for one in verdict.shortages],
        "late": [_open(one.retry) | {"where": list(one.where)} for one in verdict.late],
        "unjudged": list(verdict.unjudged),
    }


def show_verdict(verdict: AuditVerdict, tiers: TierTotals) -> None:
    line(
        f"in the tiers: {tiers.on_broker:,} messages; {tiers.expected:,} retries must be among them, the others are in "
        "flight"
    )
    for one in verdict.shortages:
        line(
            f"{one.tier} holds {one.found:,} of {one.expected:,}: {one.missing:,} missing. The audit names them once "
            "they are overdue; none of them is due before that.",
            "✗",
            "red",
        )
    show_missing(verdict.missing)
    _show_list("late, still on the broker", [(one.retry, f"can be in {', '.join(one.where)}") for one in verdict.late])
    if verdict.late:
        note("After a restart, or without a leader, the broker offers a message again only after three minutes.")
    for queue in verdict.unjudged:
        line(f"{queue}: its depth is not known (no leader, or the broker just started): run this again", "?", "yellow")
    if not verdict.lost and not verdict.unjudged:
        line("nothing is missing", "✓", "green")
    elif verdict.missing:
        note("`tarry audit recover` publishes stored messages again; `tarry audit write-off` closes the others.")


def show_missing(missing: Sequence[Missing]) -> None:
    _show_list("missing", [(one.retry, one.why) for one in missing])


def _show_list(title: str, rows: Sequence[tuple[Open, str]]) -> None:
    if not rows:
        return
    shown = table(f"{title}: {len(rows):,}", "message", "queue", "round", "due", "retry id", "why", copied=COPIED)
    for retry, why in rows[:SHOWN]:
        due = f"{retry.due:%Y-%m-%d %H:%M:%S}"
        shown.add_row(retry.message_id or "", retry.queue, str(retry.round), due, retry.retry_id, why)
    if len(rows) > SHOWN:
        shown.add_row("", "", "", "", "", f"… and {len(rows) - SHOWN:,} more")
    print_table(shown)


def _open(retry: Open) -> dict[str, Any]:
    return {
        "retry_id": retry.retry_id,
        "message_id": retry.message_id,
        "queue": retry.queue,
        "round": retry.round,
        "state": retry.state,
        "tier": retry.tier,
        "due": retry.due.isoformat(),
    }


def show_recovered(result: Recovered) -> None:
    line(f"{result.sent:,} published again", "✓", "green")
    if result.moved_on:
        line(f"{result.moved_on:,} were no longer missing")
    for retry_id, why in result.not_rebuilt[:SHOWN]:
        line(f"{retry_id} cannot be rebuilt: {why}", "✗", "red")
    for queue in result.no_queue:
        line(f"the queue {queue!r} does not exist: declare it before its messages come due", "!", "yellow")
