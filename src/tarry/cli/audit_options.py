"""Options of the commands that hold the books against the broker, and what comes of them: an auditor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tarry.audit.verify import Auditor, Rules
from tarry.cli.installation import BrokerUrl, DatabaseUrl, Installation, duration, installation
from tarry.cli.options import CaFile, ManagementUrl, TopologyFolder
from tarry.cli.shared_options import Options, sharing

Grace = Annotated[
    str,
    typer.Option(metavar="DURATION", help="A retry so long past its due moment, and not seen to return, is overdue."),
]
Settle = Annotated[
    str,
    typer.Option(
        metavar="DURATION", help="So close to the beginning or end of its wait, a message is in flight, not judged."
    ),
]
Patience = Annotated[str, typer.Option(metavar="DURATION", help="Look again for so long while something is missing.")]
OfferedAgain = Annotated[
    str,
    typer.Option(
        metavar="DURATION",
        help="The broker offers again after so long what a queue did not take; change it only if yours was told so.",
    ),
]

LOOKING: Options = {
    "grace": (Grace, "30s"),
    "settle": (Settle, "2s"),
    "patience": (Patience, "12s"),
    "offered_again": (OfferedAgain, "180s"),
    "database_url": (DatabaseUrl, None),
    "topology": (TopologyFolder, None),
    "url": (BrokerUrl, None),
    "management_url": (ManagementUrl, None),
    "ca_file": (CaFile, None),
}


@dataclass(frozen=True, slots=True)
class Books:
    """One installation, and who looks at it."""

    where: Installation
    auditor: Auditor


def with_books(command: Callable[..., None]) -> Callable[..., None]:
    """Its own options and the shared ones; it is given `books`."""

    def run(shared: dict[str, Any], own: dict[str, Any]) -> None:
        rules = Rules(
            duration(shared.pop("grace"), "--grace"),
            duration(shared.pop("settle"), "--settle"),
            duration(shared.pop("patience"), "--patience").total_seconds(),
            duration(shared.pop("offered_again"), "--offered-again"),
        )
        where = installation(**shared)
        with where.auditor(rules) as auditor:
            command(books=Books(where, auditor), **own)

    return sharing(command, ("books",), LOOKING, run)
