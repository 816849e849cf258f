"""`tarry embedded`: a private RabbitMQ and PostgreSQL while the command runs."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from tarry import embedded
from tarry.cli.options import AsJson
from tarry.cli.output import export_lines, line, note, print_json, waiting
from tarry.demo.environment import drop_addresses
from tarry.embedded.postgresql import find_install
from tarry.embedded.sources import Availability
from tarry.errors import EmbeddedError

app = typer.Typer(no_args_is_help=True, help="Run a private RabbitMQ and PostgreSQL, for experiments.")

Series = Annotated[
    str | None,
    typer.Option(help="Use this RabbitMQ series, such as 3.10 or 4.3. [default: any that is available]"),
]


@app.command()
def up(
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Keep the data in this folder, and reuse what is in it. [default: a temporary folder]"),
    ] = None,
    series: Series = None,
    postgres: Annotated[bool, typer.Option(help="Run PostgreSQL as well.")] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the addresses as one line of JSON when ready.")
    ] = False,
) -> None:
    """Run a broker and PostgreSQL until interrupted, and print their addresses."""
    if unused := drop_addresses():
        typer.echo(f"Set but not used here: {', '.join(unused)}.", err=True)
    for number in (signal.SIGINT, signal.SIGTERM):  # both, as a shell has its background jobs ignore the first
        signal.signal(number, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        server = None
        if postgres:
            server = stack.enter_context(embedded.postgres(data_dir and data_dir / "postgres"))
            server.ensure_database("tarry")
        broker = stack.enter_context(embedded.broker(series, data_dir and data_dir / "rabbitmq"))
        facts = addresses(broker, server)
        typer.echo(json.dumps(facts) if as_json else for_people(facts))
        watch(broker, server)


def addresses(broker: embedded.Broker, server: embedded.EmbeddedPostgres | None) -> dict[str, str | None]:
    return {
        "rabbitmq_url": broker.amqp_url,
        "management_url": broker.management_url,
        "database_url": server.dsn("tarry") if server else None,
        "rabbitmq_version": broker.version,
        "rabbitmq_source": broker.source,
    }


def for_people(facts: dict[str, str | None]) -> str:
    ui = urlsplit(facts["management_url"] or "")
    lines = [
        f"RabbitMQ {facts['rabbitmq_version']} is up ({facts['rabbitmq_source']}). Ctrl-C stops it.",
        f"Management UI: http://{ui.hostname}:{ui.port}/ (user {ui.username}, password {ui.password})",
        "",
        *export_lines(facts["rabbitmq_url"] or "", facts["management_url"] or "", facts["database_url"]),
    ]
    return "\n".join(lines)


def watch(broker: embedded.Broker, server: embedded.EmbeddedPostgres | None) -> None:
    """Until interrupted. Raises EmbeddedError if one of them stops unexpectedly."""
    ours = broker.pid is not None
    while True:
        time.sleep(0.5)
        if ours and broker.pid is None:
            raise EmbeddedError(f"RabbitMQ stopped unexpectedly. The end of its log:\n{broker.log_tail()}")
        if server and server.pid is None:
            raise EmbeddedError(f"PostgreSQL stopped unexpectedly. The end of its log:\n{server.log_tail()}")


@app.command()
def install(series: Series = None, *, as_json: AsJson = False) -> None:
    """Install RabbitMQ without starting it.

    Installs or builds it if needed, and shows which one is used.
    """
    with waiting("Finding RabbitMQ", quiet=as_json) as update:
        supply = embedded.obtain(series, announce=lambda text: _announce(text, update))
    if as_json:
        print_json({"version": supply.version, "source": supply.source})
    else:
        line(f"RabbitMQ {supply.version} is available: {supply.source}.")


def _announce(text: str, update: Callable[[str], None]) -> None:
    """What it does may take minutes, and stays readable afterwards."""
    note(text)
    update(text)


@app.command()
def doctor(series: Series = None, *, as_json: AsJson = False) -> None:
    """List the ways to get a broker and whether they work here.

    They are tried in this order.
    """
    brokers = [(way.name, way.look(series)) for way in embedded.ways()]
    postgres = _find_postgres()
    if as_json:
        print_json(
            {"brokers": [{"name": name} | asdict(found) for name, found in brokers], "postgres": asdict(postgres)}
        )
    else:
        for name, found in (*brokers, ("PostgreSQL", postgres)):
            line(f"{'yes' if found.usable else 'no ':3}  {name}: {found.sentence}")
    if not (postgres.usable and any(found.usable for _, found in brokers)):
        raise typer.Exit(1)


def _find_postgres() -> Availability:
    try:
        return Availability(usable=True, sentence=str(find_install()))
    except EmbeddedError as problem:
        return Availability(usable=False, sentence=str(problem))
