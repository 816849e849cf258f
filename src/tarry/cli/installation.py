"""What the commands on the books work with: one installation's topology, broker and Postgres."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from tarry.audit.report import Report, report
from tarry.audit.verify import Auditor, Rules
from tarry.broker.address import Address
from tarry.broker.management import Management
from tarry.cli.output import warn
from tarry.core.durations import PATTERN, parse_duration
from tarry.core.names import Names
from tarry.errors import SettingsError, TopologyError
from tarry.settings import load_settings
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
    """Where everything is."""

    files: Topology | NamesOnly
    address: Address
    dsn: str

    @property
    def names(self) -> Names:
        return self.files.broker_names

    @property
    def topology(self) -> Topology:
        """Raises if the files hold mistakes."""
        return whole(self.files)

    @contextmanager
    def books(self) -> Iterator[Report]:
        with report(self.dsn) as opened:
            yield opened

    @contextmanager
    def auditor(self, rules: Rules) -> Iterator[Auditor]:
        with report(self.dsn) as opened:
            yield Auditor(opened, Management(self.address), self.names, rules)


def installation(
    database_url: str | None,
    topology: Path | None,
    url: str | None,
    management_url: str | None,
    ca_file: Path | None,
    *,
    only_looks: bool = False,
) -> Installation:
    """A mistake in the files is a warning here: most commands need only the names that are in them.

    Names that cannot be told are taken to be the defaults by a command that `only_looks`; all others refuse.
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
    return Installation(files, settings.address, settings.dsn)


def _warn(files: NamesOnly, *, only_looks: bool) -> None:
    first, *more = files.error.problems
    others = f" ({len(more)} more; `tarry topology plan` lists them)" if more else ""
    if files.certain:
        warn(f"{first}{others} (this command needs only the names of queues, and goes on)")
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
    """`1h` is an hour ago; else a date or a time as ISO 8601 has it, in UTC unless it says otherwise."""
    if text is None:
        return None
    if re.fullmatch(PATTERN, text, re.ASCII):
        return datetime.now(UTC) - duration(text, option)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(f"{option} `{text}`: use a duration as in 1h, or a moment as in 2030-01-31T12:00") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
