"""The `tarry` command: each group of commands has a module of its own, and this is their table of contents."""

from __future__ import annotations

from typing import Annotated

import typer

from tarry import __version__
from tarry.cli import (
    actions,
    attach,
    audit,
    config,
    control,
    demo,
    embedded,
    explain,
    history,
    review,
    serve,
    status,
    token,
    topology,
)
from tarry.cli.output import Commands

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Delayed retries for every RabbitMQ queue, held by the broker itself and proven complete in Postgres.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tarry {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of all commands."""


demo.register(app)
serve.register(app)
app.add_typer(topology.app, name="topology")
attach.register(app)
status.register(app)
history.register(app)
explain.register(app)
config.register(app)
control.register(app)
actions.register(app)
app.add_typer(token.app, name="token")
app.add_typer(review.app, name="review")
app.add_typer(audit.app, name="audit")
app.add_typer(embedded.app, name="embedded")


def run() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    run()
