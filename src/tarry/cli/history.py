"""`tarry history`: the timeline of one message."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from tarry.cli.operator_command import operator_command
from tarry.cli.options import AsJson
from tarry.cli.output import line, print_json, print_table, table
from tarry.core.durations import humanise
from tarry.core.printable import printable
from tarry.operations.protocol import Operations
from tarry.store.history import Step, Timeline


def register(app: typer.Typer) -> None:
    app.command("history")(operator_command(history, only_looks=True))


async def history(
    called: Annotated[str, typer.Argument(metavar="ID", help="A message id, or a retry id or its prefix.")],
    *,
    operations: Operations,
    as_json: AsJson = False,
) -> None:
    """Show the timeline of one message, with times and drift."""
    found = await operations.history(called)
    if as_json:
        print_json([_plain(asdict(one)) for one in found])
        return
    for one in found:
        _show(one)


def _show(timeline: Timeline) -> None:
    of = f" of {timeline.max_retries}" if timeline.max_retries is not None else ""
    line(f"{timeline.message_id or '(no message id)'} in {timeline.queue}: {timeline.state}, round {timeline.round}")
    line(f"  retry id {timeline.retry_id}, policy {timeline.policy or '-'}, {timeline.retry_count}{of} retries")
    if timeline.owner is not None:
        line(f"  owner {printable(timeline.owner)}")
    error = ": ".join(filter(None, (timeline.error_type, timeline.error_reason)))
    if error:
        line(f"  last error {error} (fingerprint {timeline.fingerprint})")
    shown = table("", "at", "after", "round", "what", "drift", "about", right=("after", "round", "drift"))
    before: datetime | None = None
    for step in timeline.steps:
        after = "" if before is None else f"+{humanise((step.at - before).total_seconds() * 1000)}"
        drift = "" if step.drift_ms is None else f"{step.drift_ms} ms"
        at = f"{step.at:%Y-%m-%d %H:%M:%S}.{step.at.microsecond // 1000:03d}"
        shown.add_row(at, after, str(step.round), step.state, drift, _about(step))
        before = step.at
    print_table(shown)


def _about(step: Step) -> str:
    """The reason, or where it went and for how long."""
    detail = step.detail or {}
    tier, delay = detail.get("tier"), humanise(detail.get("delay_ms") or 0)
    where = f"{tier} for {delay}" if tier else ""
    if detail.get("leg") is not None:
        where = f"leg {detail['leg']}: {tier} for {humanise(detail['wait_ms'])} of {delay}"
    attempt = f"attempt {detail['attempt']}" if detail.get("attempt") is not None else ""
    return ", ".join(filter(None, (step.reason, where, attempt, f"by {step.actor}")))


def _plain(value: Any) -> Any:
    """For JSON: times as text."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
