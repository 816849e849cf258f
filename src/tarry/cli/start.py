"""The `tarry` command: the table of its command modules.

A process imports only the modules of the command that it runs, because importing all of them is slow.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated

import typer

from tarry import __version__
from tarry.cli.output import Commands, print_error
from tarry.cli.streams import close_streams, read_arguments, set_up_streams
from tarry.errors import TarryError

CONTENTS = {
    "demo": ("demo", "up"),
    "serve": ("serve",),
    "topology": ("topology",),
    "policy": ("policy",),
    "advise": ("advise",),
    "attach": ("attach", "detach"),
    "imports": ("import",),
    "status": ("status",),
    "top": ("top",),
    "history": ("history",),
    "retries": ("retries",),
    "stats": ("stats",),
    "events": ("events",),
    "webhooks": ("webhooks",),
    "explain": ("explain",),
    "config": ("config",),
    "control": ("cancel", "retry-now", "pause", "resume", "throttle", "unthrottle", "pauses", "intake"),
    "breakers": ("breakers",),
    "stuck": ("stuck",),
    "budget": ("budget",),
    "adaptive": ("adaptive",),
    "actions": ("actions",),
    "token": ("token",),
    "review": ("review",),
    "audit": ("audit",),
    "embedded": ("embedded",),
}
"""Modules and the commands of each, in the order of the help."""

COMPLETING = "_TARRY_COMPLETE"
"""Set by a shell that asks for completions."""

TYPED = ("_TYPER_COMPLETE_ARGS", "COMP_WORDS")
"""One of these has the command line that a shell wants to be completed."""


def made(modules: Iterable[str]) -> typer.Typer:
    """The command with these modules."""
    app = typer.Typer(
        cls=Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="Delayed, crash-safe retries for RabbitMQ, with an audit in Postgres.",
    )
    app.callback()(_main)
    for name in modules:
        module = import_module(f"tarry.cli.{name}")
        if hasattr(module, "register"):
            module.register(app)
        else:
            app.add_typer(module.app, name=name)
    return app


def wanted(arguments: list[str]) -> list[str]:
    """The modules that these arguments need: all of them for the help or an unknown command."""
    if COMPLETING in os.environ:
        arguments = _typed(next((os.environ[name] for name in TYPED if name in os.environ), ""))
    first = arguments[0] if arguments else ""
    if first == "--version":
        return []
    return [module for module, commands in CONTENTS.items() if first in commands] or list(CONTENTS)


def _typed(text: str) -> list[str]:
    """The arguments of a command line that is being typed, without the word that is not complete yet."""
    words = text.split()[1:]
    return words if text[-1:].isspace() else words[:-1]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tarry {__version__}")
        raise typer.Exit


def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of all commands."""


def run() -> None:
    """The console script."""
    set_up_streams()
    try:
        arguments = read_arguments(sys.argv[1:])
        made(wanted(arguments))(arguments)
    except TarryError as error:
        print_error(error)
        sys.exit(error.exit_code)
    finally:
        close_streams()
