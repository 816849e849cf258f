"""`tarry webhooks`: the endpoints that are told of events.

Exit codes: 0 done; 1 the endpoint did not take the test event, or the broker or Postgres failed; 2 wrong usage; 4 there
is no webhook of that name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from tarry.cli.control_view import plain
from tarry.cli.installation import moment
from tarry.cli.operator_command import operator_command
from tarry.cli.options import AsJson, Yes
from tarry.cli.output import Commands, line, list_by_default, note, print_json, print_table, shortened, table, waiting
from tarry.core.printable import printable
from tarry.operations.protocol import Operations
from tarry.operations.webhooks import WebhookStatus

LONGEST = 60

app = typer.Typer(
    cls=Commands, invoke_without_command=True, help="List and test webhooks, and deliver events to them again."
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of a webhook in the topology.")]


@app.callback()
def _overview(context: typer.Context, *, _as_json: AsJson = False) -> None:
    """Without a command, list them."""
    list_by_default(context)


async def list_webhooks(*, operations: Operations, as_json: AsJson = False) -> None:
    """List the webhooks of the topology: what waits for each, and how its last deliveries went."""
    found = await operations.list_webhooks()
    print_json(plain([asdict(one) for one in found])) if as_json else _show(found)


async def send_test(name: Name, *, operations: Operations, as_json: AsJson = False) -> None:
    """Send a signed test event to a webhook now, and show its answer.

    Needs the variable of its secret, unless it runs with --api. If the endpoint takes the event, a webhook that was
    disabled is enabled. Exits 1 if the endpoint does not take it, 4 if there is no such webhook.
    """
    with waiting(f"Waiting for the endpoint of {name}", quiet=as_json):
        answer = await operations.test_webhook(name)
    if as_json:
        print_json(plain(asdict(answer)))
    elif answer.delivered:
        enabled = "; it was disabled, and is enabled now" if answer.enabled else ""
        line(f"{name}: {printable(answer.url)} answered {answer.status} in {answer.seconds:g}s{enabled}", "✓", "green")
    else:
        line(f"{name}: {printable(answer.url)}: {printable(answer.error or '')} ({answer.seconds:g}s)", "✗", "red")
    if not answer.delivered:
        raise typer.Exit(1)


async def replay(
    name: Name,
    *,
    operations: Operations,
    since: Annotated[str, typer.Option(metavar="WHEN", help="Only newer events: 1h, or since 2030-01-31T12:00.")],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Deliver events to a webhook again, with the ids that they had.

    Reads the stream, and puts those that the webhook wants into its queue. More than a thousand need --yes. Exits 4 if
    there is no such webhook.
    """
    began = moment(since, "--since")
    assert began is not None  # noqa: S101 - the option is required
    with waiting(f"Replaying to {name}", quiet=as_json) as update:
        answer = await operations.replay_webhook(
            name, since=began, everything=yes, progress=lambda done: update(f"{done:,} events")
        )
    if as_json:
        print_json(plain(asdict(answer)))
    else:
        line(f"{answer.events:,} events are in the queue of {name}; `tarry webhooks list` shows the rest", "✓", "green")


app.command("list")(operator_command(list_webhooks, only_looks=True))
app.command("test")(operator_command(send_test))
app.command("replay")(operator_command(replay))


def _show(found: Sequence[WebhookStatus]) -> None:
    if not found:
        line("the topology has no webhooks")
        return
    columns = ("name", "url", "events", "waiting", "retrying", "in review", "last success", "last failure")
    shown = table("webhooks", *columns, right=("waiting", "retrying", "in review"), copied=("name",))
    for one in found:
        shown.add_row(
            one.name,
            shortened(printable(one.url), LONGEST),
            shortened(printable(_events(one)), LONGEST),
            "no queue" if one.waiting is None else str(one.waiting),
            str(one.retrying),
            str(one.in_review),
            f"{one.last_success:%Y-%m-%d %H:%M:%S}" if one.last_success else "never",
            _failure(one),
        )
    print_table(shown)
    for one in found:
        if one.waiting is None:
            note(f"{one.name}: its queue is missing; run: tarry topology apply")
        if one.disabled is not None:
            note(
                f"{one.name} is disabled since {one.disabled:%Y-%m-%d %H:%M:%S}: its endpoint is gone, and its events "
                f"wait. To enable it when the endpoint is back: tarry webhooks test {one.name}"
            )


def _events(webhook: WebhookStatus) -> str:
    about = "" if webhook.queues == ["*"] else f" of {', '.join(webhook.queues)}"
    return f"{', '.join(webhook.events)}{about}"


def _failure(webhook: WebhookStatus) -> str:
    if webhook.last_failure is None:
        return "never"
    return f"{webhook.last_failure:%Y-%m-%d %H:%M:%S}: {shortened(printable(webhook.last_error or ''), LONGEST)}"
