"""`tarry demo` and `tarry up`: a complete installation on this machine, for a demo or until interrupted."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from tarry.cli.output import export_lines
from tarry.demo.environment import drop_addresses, drop_settings
from tarry.demo.show import demo
from tarry.demo.stage import Stage, StageOptions, stage
from tarry.errors import SettingsError

Series = Annotated[
    str | None, typer.Option("--series", help="Use this RabbitMQ series, such as 3.10 or 4.3.", envvar="BROKER")
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        show_default="a private broker; RABBITMQ_URL is not read",
        help="Use this broker, which must have no other router on it.",
    ),
]
ManagementUrl = Annotated[
    str | None,
    typer.Option(
        "--management-url",
        metavar="URL",
        show_default="port 15672 of the host in --url, 15671 with TLS",
        help="The management API of the broker in --url, if it is elsewhere.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command("demo")(_demo)
    app.command("up")(_up)


def _demo(series: Series = None, url: Url = None, management_url: ManagementUrl = None) -> None:
    """Run a demo of retries on a private broker and Postgres.

    Settings from the environment are ignored.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    _report_unused(drop_settings(), console.print)
    demo(console, series=series, url=url, management_url=management_url)


def _up(
    *,
    series: Series = None,
    data_dir: Annotated[
        Path, typer.Option("--data-dir", help="Keep data and ports in this folder, and reuse what is in it.")
    ] = Path(".tarry/up"),
    http_port: Annotated[
        int | None,
        typer.Option(
            "--http-port",
            min=0,
            max=65535,
            envvar="HTTP_PORT",
            show_default="the previous port, else 8086, else any free port",
            help="The port of health, metrics and API.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Also show the log of the service.")] = False,
    url: Url = None,
    management_url: ManagementUrl = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the addresses as one line of JSON when ready.")
    ] = False,
) -> None:
    """Run the service on a private broker and Postgres.

    Runs until interrupted, and prints the addresses as shell commands. RABBITMQ_URL, DATABASE_URL and other addresses
    in the environment are ignored; all other settings are used.
    """
    if as_json and follow:
        raise SettingsError("Use either --json or --follow: the log is not one line of JSON.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(highlight=False, soft_wrap=True, stderr=as_json)
    _report_unused(drop_addresses(keep=("RABBITMQ_CA_FILE",) if url else ()), console.print)
    wanted = StageOptions(series=series, url=url, management_url=management_url, data_dir=data_dir, http_port=http_port)
    with suppress(KeyboardInterrupt), stage(wanted, lambda text: console.print(Text(text))) as made:
        typer.echo(json.dumps(_addresses(made, data_dir)) if as_json else "\n".join(["", *_described(made, data_dir)]))
        _wait(made, follow=follow)


def _report_unused(names: list[str], show: Callable[[str], None]) -> None:
    if names:
        show(f"Set but not used here: {', '.join(names)}.")


def _addresses(made: Stage, data_dir: Path) -> dict[str, str | None]:
    return {
        "rabbitmq_url": made.address.url,
        "management_url": made.address.management_with_login,
        "database_url": made.dsn,
        "http_url": made.http_url,
        "data_dir": str(data_dir),
        "service_log": str(made.service_log),
    }


def _described(made: Stage, data_dir: Path) -> list[str]:
    """The addresses, and where things are."""
    address = made.address
    return [
        *export_lines(address.url, address.management_with_login, made.dsn),
        "",
        f"  management UI  {address.management} (user {address.management_user})",
        f"  health         {made.http_url}/readyz",
        f"  data           {data_dir}",
        f"  service's log  {made.service_log} (--follow shows it here)",
        "",
        "In another shell, paste the export lines; then: tarry attach <your queue>",
        "Ctrl-C stops everything; the next start uses the same data and addresses.",
    ]


def _wait(made: Stage, *, follow: bool) -> None:
    """Until interrupted, or until the service ends."""
    with made.service_log.open(errors="replace") as log:
        while True:
            made.check()
            if follow:
                typer.echo(log.read(), nl=False)
            time.sleep(0.5)
