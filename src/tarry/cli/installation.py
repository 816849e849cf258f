"""The topology, broker and Postgres that operator commands use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from tarry.amqp.url import Address
from tarry.cli.output import warn
from tarry.core.durations import PATTERN, parse_duration
from tarry.core.names import Names
from tarry.errors import SettingsError, TopologyError
from tarry.operations.credit_check import CreditCheck
from tarry.settings import load_settings
from tarry.settings.model import span_of
from tarry.topology.model import Topology
from tarry.topology.partial import NamesOnly, whole

DatabaseUrl = Annotated[
    str | None,
    typer.Option("--database-url", envvar="DATABASE_URL", help="Postgres: postgresql://user:password@host/tarry."),
]
BrokerUrl = Annotated[
    str | None,
    typer.Option("--url", envvar="RABBITMQ_URL", help="The broker: amqp://user:password@host:5672/vhost or amqps://…"),
]


@dataclass(frozen=True, slots=True)
class Installation:
    """The topology, broker and Postgres of one installation."""

    files: Topology | NamesOnly
    address: Address
    dsn: str
    stuck_after: timedelta | None
    check: CreditCheck | None = None
    private_webhooks: bool = False

    @property
    def names(self) -> Names:
        return self.files.broker_names

    @property
    def topology(self) -> Topology:
        """Raises if the files have errors."""
        return whole(self.files)


def installation(
    database_url: str | None,
    topology: Path | None,
    url: str | None,
    management_url: str | None,
    ca_file: Path | None,
    *,
    only_looks: bool = False,
) -> Installation:
    """An error in the files is only a warning: most commands need only the names from them.

    If the names cannot be read, a command that `only_looks` uses the default names; all others refuse.
    """
    settings = load_settings(
        database_url=database_url,
        topology=topology,
        rabbitmq_url=url,
        rabbitmq_management_url=management_url,
        rabbitmq_ca_file=str(ca_file) if ca_file else None,
    )
    files = settings.read_names()
    if isinstance(files, NamesOnly):
        _warn(files, only_looks=only_looks)
    check, stuck_after = CreditCheck.of(settings), span_of(settings.stuck_after)
    private = settings.webhook_allow_private == "on"
    return Installation(files, settings.address, settings.dsn, stuck_after, check, private)


def _warn(files: NamesOnly, *, only_looks: bool) -> None:
    first, *more = files.error.problems
    others = f" ({len(more)} more; `tarry topology plan` lists them)" if more else ""
    if files.certain:
        warn(f"{first}{others} (this command continues: it needs only the names of queues)")
    elif only_looks:
        names = files.broker_names
        warn(
            f"{first}{others} (the names of queues cannot be read, so the default names are used: prefix "
            f"{names.prefix}, requests {names.scheduled}, review {names.review_queue})"
        )
    else:
        raise TopologyError(
            [
                *files.error.problems,
                "The names of queues and exchanges cannot be read from these files, so nothing was done.",
            ]
        )


def duration(text: str, option: str) -> timedelta:
    try:
        return timedelta(milliseconds=parse_duration(text))
    except ValueError as error:
        raise SettingsError(f"{option} {error}") from None


def moment(text: str | None, option: str) -> datetime | None:
    """`1h` means an hour ago; otherwise a date or time in ISO 8601, in UTC without an offset."""
    if text is None:
        return None
    if re.fullmatch(PATTERN, text, re.ASCII):
        return datetime.now(UTC) - duration(text, option)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"{option} `{text}`: use a duration such as 1h, or a time such as 2030-01-31T12:00"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
