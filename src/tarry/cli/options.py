"""Options that several commands share, and the topology and broker that they select."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tarry.amqp.url import Address
from tarry.cli.output import AS_JSON
from tarry.settings import load_settings
from tarry.topology.model import Topology

DEFAULT_URL = "amqp://guest:guest@localhost:5672/"

TopologyFolder = Annotated[
    Path | None,
    typer.Option(
        "--topology",
        "-t",
        envvar="TARRY_TOPOLOGY",
        metavar="FOLDER",
        show_default="./topology if it exists, else the shipped topology",
        help="The folder with tarry.toml and policies/.",
    ),
]
Url = Annotated[
    str,
    typer.Option("--url", envvar="RABBITMQ_URL", help="The broker: amqp://user:password@host:5672/vhost or amqps://…"),
]
ManagementUrl = Annotated[
    str | None,
    typer.Option(
        "--management-url",
        envvar="RABBITMQ_MANAGEMENT_URL",
        show_default="port 15672 of the broker's host, 15671 with TLS",
        help="The management API of the broker: http://host:15672.",
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option("--ca-file", envvar="RABBITMQ_CA_FILE", help="Certificates to trust, for amqps and https."),
]
ApiUrl = Annotated[
    str | None,
    typer.Option(
        "--api",
        envvar="TARRY_API",
        metavar="URL",
        help="Use the HTTP API of a service, such as http://127.0.0.1:8086, instead of the broker and Postgres.",
    ),
]
ApiToken = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="TARRY_TOKEN",
        help="Token for the API. Prefer the environment: other users can see arguments.",
    ),
]
RequestedBy = Annotated[
    str | None,
    typer.Option("--requested-by", metavar="NAME", show_default="user@host", help="The actor to record."),
]


def _remember(context: typer.Context, value: bool) -> bool:
    """An error is printed as JSON too. If it was given to the group, it is true of its command as well."""
    context.meta[AS_JSON] = value or context.meta.get(AS_JSON, False)
    return bool(context.meta[AS_JSON])


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.", callback=_remember)]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; recorded in the history.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def topology_from(folder: Path | None) -> Topology:
    """The given folder, else ./topology if it exists, else the shipped one; with settings from the environment.

    The service reads the same settings: `apply` must declare the queue that RETRY_QUEUE names.
    """
    return load_settings(topology=folder).read_topology()


def address_from(url: str, management_url: str | None, ca_file: Path | None) -> Address:
    return Address.parse(url, management_url=management_url, ca_file=str(ca_file) if ca_file else None)
