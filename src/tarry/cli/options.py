"""Options that several commands share, and what they stand for: which topology, which broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tarry.broker.address import Address
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
        show_default="./topology if there is one, else the shipped topology",
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
        help="The broker's management API, if it is elsewhere: http://host:15672.",
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
        help="Go through a service's HTTP API, as in http://127.0.0.1:8086, not to broker and Postgres directly.",
    ),
]
ApiToken = Annotated[
    str | None,
    typer.Option("--token", envvar="TARRY_TOKEN", help="For the API. Better in the environment: others see arguments."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]


def topology_from(folder: Path | None) -> Topology:
    """The folder given, else ./topology if it is one, else the shipped one; with what the environment overrides.

    The same as the service reads: a queue that RETRY_QUEUE renames must be the one that apply declares.
    """
    return load_settings(topology=folder).read_topology()


def address_from(url: str, management_url: str | None, ca_file: Path | None) -> Address:
    return Address.parse(url, management_url=management_url, ca_file=str(ca_file) if ca_file else None)
