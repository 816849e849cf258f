"""`tarry events`: what has happened to retries, and what is happening."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import aclosing
from typing import Annotated, Any

import typer

from tarry.cli.installation import moment
from tarry.cli.operator_command import operator_command
from tarry.cli.options import AsJson
from tarry.cli.output import line
from tarry.core.durations import humanise
from tarry.core.printable import printable
from tarry.errors import SettingsError
from tarry.events.cloudevent import Event
from tarry.events.stream import EventFilter
from tarry.operations.protocol import Operations
from tarry.topology.webhooks import event_word


def register(app: typer.Typer) -> None:
    app.command("events")(operator_command(events, only_looks=True))


async def events(
    *,
    operations: Operations,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new events, until interrupted.")] = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            show_default="everything; with --follow, what happens from now on",
            help="Only newer events: 1h, or since 2030-01-31T12:00.",
        ),
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Only about this queue, or a glob such as 'orders.*'.")] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only with this state or type, such as in_review or exhausted. Can be given several times."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show events from the stream that keeps them.

    Without --follow, shows those that are there and ends. With --json, one CloudEvent a line.
    """
    wanted = EventFilter(since=moment(since, "--since"), queue=queue, states=_states(state or ()), follow=follow)
    async with aclosing(await operations.events(wanted)) as found:
        async for one in found:
            if as_json:
                typer.echo(json.dumps(one.as_json(), ensure_ascii=False))
            else:
                line(_text(one.event))


def _states(given: Iterable[str]) -> frozenset[str]:
    try:
        return frozenset(map(event_word, given))
    except ValueError as error:
        raise SettingsError(f"--state: {error}") from None


def _text(event: Event) -> str:
    """`2030-01-31 12:00:00.123  failed_again  orders.eu  5f0c8a9e  attempt 2 of 8, due in 16s`."""
    at = f"{event.time:%Y-%m-%d %H:%M:%S}.{event.time.microsecond // 1000:03d}"
    about = ", ".join(_about(event.data))
    name = event.data.get("message_id") or event.subject
    return (
        f"{at}  {event.word:14}  {printable(event.queue or '-')}  {printable(str(name))}  {printable(about)}".rstrip()
    )


def _about(data: Any) -> list[str]:
    found = []
    if (attempt := data.get("attempt")) is not None:
        most = data.get("max_retries")
        found.append(f"attempt {attempt}" + (f" of {most}" if most is not None else ""))
    if (delay := data.get("delay_ms")) is not None:
        found.append(f"waits {humanise(delay)}")
    if (drift := data.get("drift_ms")) is not None:
        found.append(f"{drift} ms late")
    if reason := data.get("reason"):
        found.append(str(reason))
    return found
