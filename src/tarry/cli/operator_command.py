"""The common options of operator commands, and the filter options of those that select messages.

Such a command is an async function with a parameter `operations`, and `chosen` or `wanted` if it takes a filter of
messages in review or of retries. `operator_command` replaces these by the options that they are built from, which are
defined here once.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Annotated, Any, get_type_hints

import typer

from tarry.cli.installation import BrokerUrl, DatabaseUrl, installation, moment
from tarry.cli.logs import set_up_command_logs
from tarry.cli.options import ApiToken, ApiUrl, CaFile, ManagementUrl, RequestedBy, TopologyFolder
from tarry.cli.remote import current_user, remote_operations
from tarry.core.states import State
from tarry.operations.action_log import ORIGIN
from tarry.operations.context import OperatorContext, OperatorLimits
from tarry.operations.local import LocalOperations
from tarry.operations.lookup import RetryFilter
from tarry.operations.protocol import Operations
from tarry.operations.review.browse import Filter

PATIENCE = 30
"""Timeout of requests to the management API, in seconds: longer than in the service, where other requests wait."""


@asynccontextmanager
async def operations_from(
    *,
    only_looks: bool,
    requested_by: RequestedBy = None,
    api: ApiUrl = None,
    token: ApiToken = None,
    database_url: DatabaseUrl = None,
    topology: TopologyFolder = None,
    url: BrokerUrl = None,
    management_url: ManagementUrl = None,
    ca_file: CaFile = None,
) -> AsyncIterator[Operations]:
    """The operations of the service at `api`, or on the broker and Postgres."""
    if api is not None:
        async with remote_operations(api, token, requested_by) as remote:
            yield remote
        return
    actor = requested_by or current_user()
    found = installation(database_url, topology, url, management_url, ca_file, only_looks=only_looks)
    limits = OperatorLimits(stuck_after=found.stuck_after, private_webhooks=found.private_webhooks)
    async with OperatorContext.open(
        found.files, found.address, found.dsn, actor=actor, limits=limits, check=found.check
    ) as context:
        yield LocalOperations(context, actor, PATIENCE)


def filter_from(
    *,
    queue: Annotated[
        str | None,
        typer.Option(help="The queue it failed in, or a glob such as 'orders.*'; '' for messages without one."),
    ] = None,
    review_reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The reason for the review contains this text.")
    ] = None,
    fingerprint: Annotated[
        str | None, typer.Option(help="The fingerprint of its error, or a prefix: see `tarry review groups`.")
    ] = None,
    error_type: Annotated[str | None, typer.Option(help="An error type, or a glob.")] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="WHEN", help="In review for longer: 1h, or since before 2030-01-31T12:00.")
    ] = None,
    newer_than: Annotated[str | None, typer.Option(metavar="WHEN", help="In review for a shorter time.")] = None,
    owner: Annotated[str | None, typer.Option(help="Whom the message belongs to.")] = None,
) -> Filter:
    return Filter(
        queue=queue,
        reason=review_reason,
        fingerprint=fingerprint,
        error_type=error_type,
        before=moment(older_than, "--older-than"),
        after=moment(newer_than, "--newer-than"),
        owner=owner,
    )


def retries_from(
    *,
    state: Annotated[list[State] | None, typer.Option(help="Only in this state. Repeatable.")] = None,
    queue: Annotated[str | None, typer.Option(help="The queue it failed in.")] = None,
    policy: Annotated[str | None, typer.Option(help="The policy that it follows.")] = None,
    owner: Annotated[str | None, typer.Option(help="Whom the message belongs to.")] = None,
    error: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The type of its error, or a part of the reason.")
    ] = None,
    fingerprint: Annotated[str | None, typer.Option(help="The fingerprint of its error, or a prefix.")] = None,
    message_id: Annotated[str | None, typer.Option(help="The id of its message.")] = None,
    due_after: Annotated[str | None, typer.Option(metavar="WHEN", help="Due at this time or later.")] = None,
    due_before: Annotated[str | None, typer.Option(metavar="WHEN", help="Due before this time.")] = None,
) -> RetryFilter:
    return RetryFilter(
        states=state or None,
        queue=queue,
        fingerprint=fingerprint,
        message_id=message_id,
        due_after=moment(due_after, "--due-after"),
        due_before=moment(due_before, "--due-before"),
        owner=owner,
        policy=policy,
        error=error,
    )


FILTERS: dict[str, Callable[..., object]] = {"chosen": filter_from, "wanted": retries_from}
"""Parameters of commands, and the options that make them."""

Command = Callable[..., Coroutine[Any, Any, None]]


def operator_command(command: Command, *, only_looks: bool = False) -> Callable[..., None]:
    """A function for typer: `operations` and filters are replaced by the options that they are built from. A command
    that has one of those itself, such as `topology`, gets its value too.

    Without readable topology files, a command that `only_looks` uses the default names; others refuse.
    """
    named = inspect.signature(command).parameters
    name, make = next(((name, make) for name, make in FILTERS.items() if name in named), ("", None))
    chosen = [] if make is None else _options(make)
    where = _options(operations_from, leave_out="only_looks")
    shared = [one.name for one in where if one.name in named]
    own = [one for one in _options(command) if one.name not in ("operations", name, *shared)]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        set_up_command_logs()
        place = {one.name: given.pop(one.name) for one in where}
        picked = {} if make is None else {name: make(**{one.name: given.pop(one.name) for one in chosen})}
        picked |= {one: place[one] for one in shared}
        asyncio.run(_run(command, given | picked, place | {"only_looks": only_looks}))

    parameters = [*own, *chosen, *where]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads the options from it
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


async def _run(command: Command, arguments: dict[str, Any], where: dict[str, Any]) -> None:
    ORIGIN.set("command")
    async with operations_from(**where) as operations:
        await command(operations=operations, **arguments)


def _options(function: Callable[..., Any], leave_out: str = "") -> list[inspect.Parameter]:
    hints = get_type_hints(function, include_extras=True)
    return [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
        for name, one in inspect.signature(function).parameters.items()
        if name != leave_out
    ]
