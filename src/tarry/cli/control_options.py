"""Options that the commands on retries and destinations share, and what comes of them: hands to act with."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from tarry.cli.control_port import AtThisDesk, Hands, ThroughTheApi
from tarry.cli.installation import BrokerUrl, DatabaseUrl, installation
from tarry.cli.options import ApiToken, ApiUrl, CaFile, ManagementUrl, TopologyFolder
from tarry.cli.remote import Remote
from tarry.cli.shared_options import Options, sharing
from tarry.control.desk import Desk

RequestedBy = Annotated[
    str | None,
    typer.Option(
        "--requested-by",
        metavar="NAME",
        show_default="user@host",
        help="Who wants this; recorded as the actor.",
    ),
]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; recorded with it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before something large.")]

PLACE: Options = {
    "requested_by": (RequestedBy, None),
    "api": (ApiUrl, None),
    "token": (ApiToken, None),
    "database_url": (DatabaseUrl, None),
    "topology": (TopologyFolder, None),
    "url": (BrokerUrl, None),
    "management_url": (ManagementUrl, None),
    "ca_file": (CaFile, None),
}
"""Options of every command that acts: where the installation is, and who is asking."""

Command = Callable[..., Coroutine[Any, Any, None]]


def with_hands(command: Command, *, only_looks: bool = False) -> Callable[..., None]:
    """Its own options and the shared ones; it is given `hands` to act with, or to look if that is all it does."""

    def run(place: dict[str, Any], own: dict[str, Any]) -> None:
        asyncio.run(_act(command, place | {"only_looks": only_looks}, own))

    return sharing(command, ("hands",), PLACE, run)


async def _act(command: Command, place: dict[str, Any], given: dict[str, Any]) -> None:
    async with _hands(**place) as hands:
        await command(hands=hands, **given)


@asynccontextmanager
async def _hands(*, requested_by: str | None, api: str | None, token: str | None, **where: Any) -> AsyncIterator[Hands]:
    async with acting(requested_by=requested_by, api=api, token=token, **where) as place:
        yield ThroughTheApi(place) if isinstance(place, Remote) else AtThisDesk(place)


@asynccontextmanager
async def acting(
    *, requested_by: str | None, api: str | None, token: str | None, **where: Any
) -> AsyncIterator[Remote | Desk]:
    """Where a command does its work: through a service's API if one is named, else at a desk of its own."""
    person = requested_by or whoever()
    if api is not None:
        yield Remote(api, token, person)
        return
    found = installation(**where)
    async with Desk.open(found.files, found.address, found.dsn, actor=person) as desk:
        yield desk


def whoever() -> str:
    """Who sits at this terminal."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
