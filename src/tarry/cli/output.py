"""How every command speaks: tables and colour on a terminal, plain lines in a pipe, JSON on request, errors as a line.

What a command answers goes to stdout; everything about the doing of it (progress, notes, errors) goes to stderr.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from tarry.errors import TarryError

INTERRUPTED = 130

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


class Commands(TyperGroup):
    """A group of commands in which a TarryError is one message on stderr and an exit code, never a traceback."""

    def invoke(self, ctx: Any) -> Any:
        # Pika tells each failure in a dozen lines of its own before it raises, and the pool each of its attempts; ours
        # says it in one.
        logging.getLogger("pika").setLevel(logging.CRITICAL)
        logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
        try:
            return super().invoke(ctx)
        except TarryError as error:
            print_error(error)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            note("interrupted")
            raise typer.Exit(INTERRUPTED) from None


def print_error(error: TarryError) -> None:
    """`error: …`, several mistakes one below the other."""
    for line in str(error).splitlines() or [type(error).__name__]:
        err.print(Text.assemble(("error:", "bold red"), " ", line))


def line(text: str, mark: str = "", style: str = "") -> None:
    """One line of answer. Text from the broker is never read as markup."""
    out.print(Text.assemble((f"{mark} " if mark else "", style), text))


def note(text: str) -> None:
    """Worth knowing, not the answer."""
    err.print(Text(text, style="dim"))


def print_json(data: Any) -> None:
    """Straight to stdout: rich would wrap and colour it."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))


def table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    """A table that reads well in a terminal and in a pipe; columns named in `right` hold numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", no_wrap=column in right)
    return made


def print_table(made: Table) -> None:
    """In a pipe a table is as wide as its content; only a terminal has an edge to wrap at."""
    console = out if out.is_terminal else Console(highlight=False, width=10_000)
    console.print(made, soft_wrap=False)
    console.print()


@contextmanager
def progress_bar(what: str, *, quiet: bool = False) -> Iterator[Progress]:
    """On stderr, on a terminal only, gone when done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[at]}"))
    shown = Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal)
    with shown:
        shown.add_task(what, total=None, at="")
        yield shown


@contextmanager
def waiting(what: str, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A spinner on stderr, on a terminal only, for a wait whose end nobody knows; call it with the latest news."""
    if quiet or not err.is_terminal:
        yield lambda _news: None
        return
    with err.status(Text(what)) as status:
        yield lambda news: status.update(Text(f"{what}: {news}"))
