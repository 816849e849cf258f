"""Output of `tarry attach` and `tarry detach`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from tarry.attach.detach import DetachPlan
from tarry.attach.findings import Level
from tarry.attach.listing import Attachment, AttachmentState
from tarry.attach.plan import AttachPlan
from tarry.attach.report import policy_report, status
from tarry.cli.output import line, note, print_table, table

MARKS = {
    "attached": ("✔", "green"),
    "unchanged": ("=", "dim"),
    "planned": ("+", "yellow"),
    "refused": ("✘", "red"),
    "not attached": ("✘", "red"),
}
WORDS = {"unchanged": "already attached, nothing to change", "planned": "would be attached"}
REMARKS = ((Level.REFUSAL, "why:", "red"), (Level.WARNING, "warning:", "yellow"), (Level.NOTE, "note:", "dim"))
STATES = {AttachmentState.OK: "green", AttachmentState.DRIFTED: "yellow", AttachmentState.TYPE_CHANGED: "yellow"}


def show_plan(plan: AttachPlan, *, dry_run: bool) -> None:
    outcome = status(plan, dry_run=dry_run)
    line(f"{plan.destination.kind} {plan.destination.name}: {WORDS.get(outcome, outcome)}", *MARKS[outcome])
    for text in _changes(plan, in_full=dry_run):
        line(f"    {text}")
    for level, word, style in REMARKS:
        for text in plan.texts(level):
            line(text, f"    {word}", style)


def show_unfinished(plan: AttachPlan, *, left: bool) -> None:
    if left:
        line(f"{plan.destination.kind} {plan.destination.name}: not attached", *MARKS["not attached"])
    else:
        show_plan(plan, dry_run=False)


def _changes(plan: AttachPlan, *, in_full: bool) -> list[str]:
    """In full, a reader can check the policy and set it by other means."""
    found = [
        f"queue   {queue.name}{f' {_compact(queue.arguments.as_dict())}' if in_full else ''}"
        for queue in plan.missing.queues
    ]
    found += [f"binding {binding}" for binding in plan.missing.bindings]
    for policy, changes in ((plan.policy, plan.policy_changes), (plan.fallback, plan.fallback_changes)):
        if policy is not None and changes:
            about = policy_report(policy) if in_full else dict(policy.definition)
            found.append(f"policy  {'' if in_full else f'{policy.name} '}{_compact(about)}")
    return found


def _compact(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False)


def show_attachments(found: Sequence[Attachment]) -> None:
    if not found:
        note("Nothing is attached. `tarry attach <queue>` routes the rejects of a queue to tarry.")
        return
    shown = table("Attached", "kind", "name", "state", "merged with policy", "detail", copied=("name",))
    for one in found:
        state = Text(str(one.state), style=STATES.get(one.state, "red"))
        shown.add_row(one.destination.kind, one.destination.name, state, one.base or "", one.detail)
    print_table(shown)


def show_detached(plan: DetachPlan, *, dry_run: bool) -> None:
    name = f"{plan.destination.kind} {plan.destination.name}"
    if plan.nothing_to_do:
        line(f"{name}: was not attached", "=", "dim")
        return
    if not plan.parts:
        words = ("not detached", "✘", "red")
    else:
        words = ("would be detached", "+", "yellow") if dry_run else ("detached", "✔", "green")
    line(f"{name}: {words[0]}", *words[1:])
    for part in plan.parts:
        line(f"    {part}")
    for text in plan.kept:
        line(text, "    kept:", "yellow")
