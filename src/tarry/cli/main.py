"""The `tarry` command."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True)


def run() -> None:
    app()
