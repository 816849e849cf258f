"""What the review commands have in common: where the installation is, which messages are meant, who is asking.

A command is an async function of `reviews` and its own options. The options that all of them share are added here, to
its signature, so that each is written once.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from tarry.cli.control_options import PLACE, acting
from tarry.cli.installation import moment
from tarry.cli.remote import Remote
from tarry.cli.review_port import AtThisDesk, Reviews
from tarry.cli.review_remote import ThroughTheApi
from tarry.cli.shared_options import Options, sharing
from tarry.control.review.filters import Filter

QueueGlob = Annotated[
    str | None, typer.Option("--queue", help="Failed in this queue; a glob such as 'orders.*' will do, '' means none.")
]
Fingerprint = Annotated[
    str | None,
    typer.Option(
        "--fingerprint", help="The same error, or the beginning of its fingerprint: see `tarry review groups`."
    ),
]
ErrorType = Annotated[str | None, typer.Option("--error-type", help="An error type, or a glob.")]
Older = Annotated[
    str | None, typer.Option("--older-than", metavar="WHEN", help="In review since longer: 1h, or 2030-01-31T12:00.")
]
Newer = Annotated[str | None, typer.Option("--newer-than", metavar="WHEN", help="In review since a shorter time.")]
ReviewReason = Annotated[
    str | None, typer.Option("--review-reason", metavar="TEXT", help="The reason for the review has this in it.")
]
Async = Callable[..., Coroutine[Any, Any, None]]

_FILTER: Options = {
    "queue": (QueueGlob, None),
    "review_reason": (ReviewReason, None),
    "fingerprint": (Fingerprint, None),
    "error_type": (ErrorType, None),
    "older_than": (Older, None),
    "newer_than": (Newer, None),
}


def command(app: typer.Typer, name: str, *, only_looks: bool = False) -> Callable[[Async], Async]:
    """Registers a command; one that asks for `chosen` gets the filter's options too."""

    def register(function: Async) -> Async:
        app.command(name)(as_command(function, only_looks=only_looks))
        return function

    return register


def as_command(function: Async, *, only_looks: bool = False) -> Callable[..., None]:
    """A function that typer can read, and that runs this one with its reviews."""
    filtered = "chosen" in inspect.signature(function).parameters

    def run(shared: dict[str, Any], own: dict[str, Any]) -> None:
        place = {one: shared.pop(one) for one in PLACE} | {"only_looks": only_looks}
        chosen = {"chosen": _filter(**shared)} if filtered else {}
        asyncio.run(_with_reviews(function, place, own | chosen))

    return sharing(function, ("reviews", "chosen"), {**(_FILTER if filtered else {}), **PLACE}, run)


async def _with_reviews(function: Async, place: dict[str, Any], arguments: dict[str, Any]) -> None:
    async with _reviews(**place) as reviews:
        await function(reviews=reviews, **arguments)


@asynccontextmanager
async def _reviews(
    *, requested_by: str | None, api: str | None, token: str | None, **where: Any
) -> AsyncIterator[Reviews]:
    async with acting(requested_by=requested_by, api=api, token=token, **where) as place:
        yield ThroughTheApi(place) if isinstance(place, Remote) else AtThisDesk(place)


def _filter(
    *,
    queue: str | None,
    review_reason: str | None,
    fingerprint: str | None,
    error_type: str | None,
    older_than: str | None,
    newer_than: str | None,
) -> Filter:
    return Filter(
        queue=queue,
        reason=review_reason,
        fingerprint=fingerprint,
        error_type=error_type,
        before=moment(older_than, "--older-than"),
        after=moment(newer_than, "--newer-than"),
    )
