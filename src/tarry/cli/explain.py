"""`tarry explain`: what would happen to a failed message, and why."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tarry.amqp.url import Address
from tarry.cli.explain_view import explained_json, print_explained, print_schedule, schedule_json
from tarry.cli.options import (
    DEFAULT_URL,
    ApiToken,
    ApiUrl,
    AsJson,
    CaFile,
    ManagementUrl,
    TopologyFolder,
    Url,
    address_from,
    topology_from,
)
from tarry.cli.output import line, note, print_json
from tarry.cli.remote import remote_operations
from tarry.cli.streams import read_stdin
from tarry.cli.topology_view import print_warnings
from tarry.contract import headers as h
from tarry.core.durations import parse_duration
from tarry.errors import SettingsError
from tarry.operations.explain import (
    UNREADABLE,
    Explained,
    Explainer,
    PolicySchedule,
    no_message,
    read_message,
)
from tarry.topology.checks.files import check_policies
from tarry.topology.record import described

if TYPE_CHECKING:
    from tarry.operations.remote import RemoteOperations


def from_json(file: str) -> list[dict[str, Any]]:
    """One message or a list of them, as the management UI or `rabbitmqadmin get` shows them; `-` is stdin."""
    try:
        text = read_stdin() if file == "-" else Path(file).read_text(encoding="utf-8")
        parsed = json.loads(text)
        found = parsed if isinstance(parsed, list) else [parsed]
        for one in found:
            read_message(one)
    except (OSError, *UNREADABLE) as error:
        raise no_message("stdin" if file == "-" else file, error) from error
    return found


def register(app: typer.Typer) -> None:
    app.command("explain")(explain_command)


def explain_command(
    *,
    queue: Annotated[str | None, typer.Option(help="The queue that the message failed in.")] = None,
    count: Annotated[int | None, typer.Option(help="Retries already used.")] = None,
    error_type: Annotated[str | None, typer.Option(help="As in the header `error_type`.")] = None,
    error_reason: Annotated[str | None, typer.Option(help="As in the header `error_reason`.")] = None,
    error_class: Annotated[str | None, typer.Option("--class", help="final, retryable or rate_limited.")] = None,
    retry_after: Annotated[
        str | None, typer.Option(metavar="DURATION", help="The delay that the request asks for, as in 30s.")
    ] = None,
    priority: Annotated[str | None, typer.Option(help="As in the header `priority`.")] = None,
    job_type: Annotated[str | None, typer.Option(help="As in the header `job_type`.")] = None,
    owner: Annotated[str | None, typer.Option(help="As in the header `owner`.")] = None,
    max_retries: Annotated[int | None, typer.Option(help="Retries that the request asks for.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Another header of the message; repeatable.")
    ] = None,
    ask: Annotated[
        bool, typer.Option("--ask", help="Ask the eligibility endpoint of the policy, and show its answer.")
    ] = False,
    message: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A message as JSON, as the management UI shows it; - is stdin."),
    ] = None,
    peek_queue: Annotated[
        str | None,
        typer.Option(
            "--peek",
            metavar="QUEUE",
            help="The first message of a live queue. It is requeued, and marked as redelivered.",
        ),
    ] = None,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="The whole schedule of the policy for --queue, or of all policies.")
    ] = False,
    policy: Annotated[str | None, typer.Option(help="With --schedule: the policy of this name.")] = None,
    api: ApiUrl = None,
    token: ApiToken = None,
    folder: TopologyFolder = None,
    url: Url = DEFAULT_URL,
    management_url: ManagementUrl = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Explain what would happen to a failed message, and why.

    Shows policy, class, delay, tiers and due time. Changes nothing. Describe the message with options, as JSON, or read
    it from a live queue. --message with --queue explains a reject in that queue. With --api, the topology of the
    running service is used.
    """
    given = {h.RETRY_COUNT: count, h.ERROR_TYPE: error_type, h.ERROR_REASON: error_reason, h.PRIORITY: priority}
    given |= {h.JOB_TYPE: job_type, h.MAX_RETRIES: max_retries, h.RETRY_AFTER: _milliseconds(retry_after)}
    given |= {h.ORIGINAL_QUEUE: queue, h.ERROR_CLASS: error_class, h.OWNER: owner}
    given = _headers(header or ()) | {name: value for name, value in given.items() if value is not None}

    async def run() -> None:
        address = address_from(url if peek_queue else DEFAULT_URL, management_url, ca_file)
        async with _explainer(api, token, folder, address, as_json=as_json) as explainer:
            if schedule or policy:
                found = await explainer.policy_schedules(
                    policy=policy, queue=queue, priority=priority, job_type=job_type
                )
                _show_schedules(found, as_json=as_json)
            elif message is not None:
                _show(await explainer.explain(from_json(message), queue=queue, ask=ask), as_json=as_json)
            elif peek_queue is not None:
                _show([await explainer.explain_first(peek_queue, ask=ask)], as_json=as_json)
            elif queue is not None:
                _show(await explainer.explain([_described(given)], ask=ask), as_json=as_json)
            else:
                raise SettingsError("Nothing to explain: give --queue, --message, --peek or --schedule.")

    asyncio.run(run())


@asynccontextmanager
async def _explainer(
    api: str | None, token: str | None, folder: Path | None, address: Address, *, as_json: bool
) -> AsyncIterator[Explainer | RemoteOperations]:
    """The service at `api`, or the topology files."""
    if api is not None:
        async with remote_operations(api, token) as remote:
            yield remote
        return
    topology = topology_from(folder)
    if not as_json:
        note(f"Topology: {described(topology)}")
        print_warnings(check_policies(topology))
    yield Explainer(topology, address)


def _headers(pairs: Sequence[str]) -> dict[str, str | int | None]:
    wrong = [pair for pair in pairs if "=" not in pair]
    if wrong:
        raise SettingsError(f"--header {wrong[0]}: write NAME=VALUE, as in device_id=d-17.")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def _described(headers: Mapping[str, str | int | None]) -> dict[str, Any]:
    """A request in headers, as a consumer would publish it."""
    return {"properties": {"headers": {name: value for name, value in headers.items() if value is not None}}}


def _milliseconds(duration: str | None) -> int | None:
    try:
        return None if duration is None else parse_duration(duration)
    except ValueError as error:
        raise SettingsError(f"--retry-after {error}") from None


def _show(found: Sequence[Explained], *, as_json: bool) -> None:
    if as_json:
        answers = [explained_json(one) for one in found]
        print_json(answers[0] if len(answers) == 1 else answers)
        return
    for place, one in enumerate(found):
        if place:
            line("")
        print_explained(one)


def _show_schedules(found: Sequence[PolicySchedule], *, as_json: bool) -> None:
    if as_json:
        print_json([schedule_json(one) for one in found])
        return
    for one in found:
        print_schedule(one)
