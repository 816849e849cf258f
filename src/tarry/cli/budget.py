"""`tarry budget`: what is used of budgets, and the exceptions of owners.

Exit codes: 0 done; 1 Postgres failed; 2 wrong usage; 4 there is no such policy or exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from tarry.cli.control_view import plain
from tarry.cli.operator_command import operator_command
from tarry.cli.options import AsJson, Reason
from tarry.cli.output import Commands, line, print_json, print_table, shortened, table
from tarry.core.printable import printable
from tarry.operations.budgets import BudgetUse, OwnerLimit, OwnerLimitChanged
from tarry.operations.protocol import Operations

MOST_LISTED = 200
LONGEST = 60

app = typer.Typer(
    cls=Commands, no_args_is_help=True, help="Show the budgets of policies, and set exceptions for owners."
)

OfOwner = Annotated[str, typer.Option("--owner", metavar="NAME", help="The owner, as in the header `owner`.")]
OfPolicy = Annotated[
    str | None, typer.Option("--policy", metavar="NAME", help="Only for this policy; default: for all.")
]


async def set_exception(
    *,
    operations: Operations,
    owner: OfOwner,
    policy: OfPolicy = None,
    hourly: Annotated[int | None, typer.Option(min=0, help="In place of the limit per owner and hour.")] = None,
    daily: Annotated[int | None, typer.Option(min=0, help="In place of the limit per owner and day.")] = None,
    monthly: Annotated[int | None, typer.Option(min=0, help="In place of the limit per owner and month.")] = None,
    max_retries: Annotated[int | None, typer.Option(min=0, max=1_000, help="The most retries of each message.")] = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Set other limits for one owner.

    What is not given stays as it is. Limits replace those of budgets per owner, from the next retry on; `--max-retries`
    sends messages of the owner to review earlier. Exits 4 if there is no such policy.
    """
    answer = await operations.set_budget(
        owner,
        policy=policy,
        hourly=hourly,
        daily=daily,
        monthly=monthly,
        max_retries=max_retries,
        reason=reason,
    )
    print_json(plain(asdict(answer))) if as_json else _show_set(answer)


async def unset_exception(
    *,
    operations: Operations,
    owner: OfOwner,
    policy: OfPolicy = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Remove the exception of an owner.

    The limits of the policies apply again. Exits 4 if there is no such exception.
    """
    answer = await operations.unset_budget(owner, policy=policy, reason=reason)
    if as_json:
        print_json(plain(asdict(answer)))
    else:
        line(f"{_whose(answer.exception)}: the limits of the policies apply again", "✓", "green")


async def list_budgets(
    *,
    operations: Operations,
    owner: Annotated[str | None, typer.Option("--owner", metavar="NAME", help="Only of this owner.")] = None,
    policy: Annotated[str | None, typer.Option("--policy", metavar="NAME", help="Only of this policy.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST_LISTED, help="How many to list.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show what is used of each budget in its period, and the exceptions of owners; the most used first."""
    found = await operations.list_budgets(owner=owner, policy=policy, limit=limit)
    if as_json:
        print_json(plain(asdict(found)))
        return
    if found.uses:
        _show_uses(found.uses)
    if found.exceptions:
        _show_exceptions(found.exceptions)
    if not found.uses and not found.exceptions:
        line("nothing is used of any budget, and no owner has an exception")


app.command("set")(operator_command(set_exception))
app.command("unset")(operator_command(unset_exception))
app.command("list")(operator_command(list_budgets, only_looks=True))


def _show_set(answer: OwnerLimitChanged) -> None:
    line(f"{_whose(answer.exception)}: {_limits(answer.exception)}", "✓", "green")
    for one in answer.without_effect:
        line(f"has no effect now: {printable(one)}", "!", "yellow")


def _whose(exception: OwnerLimit) -> str:
    return printable(exception.owner) + (f" in policy {printable(exception.policy)}" if exception.policy else "")


def _limits(exception: OwnerLimit) -> str:
    limits = {"an hour": exception.hourly, "a day": exception.daily, "a month": exception.monthly}
    found = [f"{limit:,} {period}" for period, limit in limits.items() if limit is not None]
    if exception.max_retries is not None:
        found.append(f"at most {exception.max_retries} retries of a message")
    return ", ".join(found)


def _show_uses(uses: Sequence[BudgetUse]) -> None:
    numbers = ("used", "limit", "in the next", "later")
    shown = table("", "policy", "per", "of", "every", *numbers, "next period", "over", right=numbers, copied=("of",))
    for one in uses:
        every = f"{one.every} ({one.zone})" if one.unit == "retries" else f"{one.every} ({one.zone}), {one.unit}"
        counts = (f"{one.used:,}", f"{one.limit:,}", f"{one.used_in_next:,}", f"{one.used_later - one.used_in_next:,}")
        ends = f"{one.period_ends:%Y-%m-%d %H:%M} UTC"
        shown.add_row(one.policy, one.per, printable(one.subject) or "-", every, *counts, ends, one.over)
    print_table(shown)


def _show_exceptions(exceptions: Sequence[OwnerLimit]) -> None:
    shown = table("exceptions", "owner", "policy", "limits", "by", "since", "why", copied=("owner",))
    for one in exceptions:
        why, since = shortened(one.reason or "", LONGEST), f"{one.at:%Y-%m-%d %H:%M}"
        shown.add_row(
            printable(one.owner), printable(one.policy or "all"), _limits(one), printable(one.actor), since, why
        )
    print_table(shown)
