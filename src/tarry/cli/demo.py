"""`tarry demo` and `tarry up`: a whole installation on this machine, for a moment or until interrupted."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tarry.demo.show import demo
from tarry.demo.stage import stage

Series = Annotated[
    str | None, typer.Option("--series", help="Insist on this RabbitMQ series, such as 3.10 or 4.3.", envvar="BROKER")
]


def register(app: typer.Typer) -> None:
    app.command("demo")(_demo)
    app.command("up")(_up)


def _demo(series: Series = None) -> None:
    """Watch retries happen: private broker and Postgres, a worker that fails, and the balance at the end."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    demo(Console(highlight=False, soft_wrap=not sys.stdout.isatty()), series=series)


def _up(
    series: Series = None,
    data_dir: Annotated[
        Path, typer.Option("--data-dir", help="Keep all data here, and go on with what is in it.")
    ] = Path(".tarry/up"),
    http_port: Annotated[int, typer.Option("--http-port", envvar="HTTP_PORT", help="Of health and metrics.")] = 8086,
) -> None:
    """Run the service on a private broker and Postgres until interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(highlight=False, soft_wrap=True)
    with (
        suppress(KeyboardInterrupt),
        stage(series=series, data_dir=data_dir, http_port=http_port, say=console.print) as made,
    ):
        console.print(f"\n  RABBITMQ_URL={made.address.url}")
        console.print(f"  RABBITMQ_MANAGEMENT_URL={made.address.management_with_login}")
        console.print(f"  DATABASE_URL={made.dsn}")
        console.print(f"\n  management UI  {made.address.management} (user {made.address.management_user})")
        console.print(f"  health         {made.http_url}/readyz")
        console.print(f"  data           {data_dir}")
        console.print("\nNow, in another shell with these variables: tarry attach <your queue>. Ctrl-C ends it all.")
        while True:
            made.check()
            time.sleep(0.5)
