"""How every command speaks: tables and colour on a terminal, plain lines in a pipe, JSON on request, errors as a line.

What a command answers goes to stdout; everything about the doing of it (progress, notes, errors) goes to stderr.

Whatever is said passes through here, and anything may come from outside: an error text, a queue's name, an answer of
the broker. So nothing is read as markup, and what a terminal would act on is escaped.
"""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console, JustifyMethod, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.style import StyleType
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from tarry.cli.printable import printable, printable_json
from tarry.cli.records import fits, records
from tarry.errors import SettingsError, TarryError

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
        err.print(Text.assemble(("error:", "bold red"), " ", printable(line)))


def line(text: str, mark: str = "", style: str = "") -> None:
    """One line of answer: a line end in somebody's error text does not begin another."""
    out.print(Text.assemble((f"{mark} " if mark else "", style), printable(text)))


def block(text: str) -> None:
    """A text with its own line ends, such as a payload."""
    out.print(Text(printable(text, lines=True)))


def warn(text: str) -> None:
    """`warning: …`, in one line: it was done all the same."""
    err.print(Text.assemble(("warning:", "bold yellow"), " ", printable(text)))


def note(text: str) -> None:
    """Worth knowing, not the answer."""
    err.print(Text(printable(text, lines=True), style="dim"))


def export_lines(rabbitmq_url: str, management_url: str, database_url: str | None) -> list[str]:
    """The addresses of an installation as lines to paste into a shell."""
    variables = {
        "RABBITMQ_URL": rabbitmq_url,
        "RABBITMQ_MANAGEMENT_URL": management_url,
        "DATABASE_URL": database_url,
    }
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items() if value]


def confirm(what: str, *, yes: bool, why: str = "That is large") -> None:
    """Asks before something that cannot be taken back; where nobody can be asked, it is refused."""
    if yes:
        return
    if not (sys.stdin.isatty() and err.is_terminal):
        raise SettingsError(f"{what} {why}: say so with --yes.")
    if not typer.confirm(printable(f"{what} Go on?"), err=True):
        raise SettingsError("Nothing was done.")


def print_json(data: Any) -> None:
    """Straight to stdout: rich would wrap and colour it. In ASCII where the output is not in UTF-8."""
    in_ascii = out.encoding != "utf-8"
    typer.echo(printable_json(json.dumps(data, indent=2, ensure_ascii=in_ascii)))


class PlainTable(Table):
    """Rich reads the text of a cell as markup, unless it is told that it is text."""

    copied: Collection[str] = ()
    """Columns with ids and names that people copy: never cut, never broken in two."""

    def add_row(self, *cells: RenderableType | None, style: StyleType | None = None, end_section: bool = False) -> None:
        plain = (Text(printable(one)) if isinstance(one, str) else one for one in cells)
        super().add_row(*plain, style=style, end_section=end_section)


def table(title: str, *columns: str, right: Collection[str] = (), copied: Collection[str] = ()) -> PlainTable:
    """A table that reads well in a terminal and in a pipe.

    Columns named in `right` hold numbers, those in `copied` ids and names that people copy.
    """
    made = PlainTable(
        title=escape(printable(title)),
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        header_style="dim",
    )
    made.copied = copied
    for column in columns:
        justify: JustifyMethod = "right" if column in right else "left"
        made.add_column(column, justify=justify, no_wrap=column in {*right, *copied}, overflow="fold")
    return made


def print_table(made: PlainTable) -> None:
    """In a pipe a table is as wide as its content; only a terminal has an edge, where a wide one becomes records."""
    console = out if out.is_terminal else Console(highlight=False, width=10_000)
    if not made.copied or fits(made, made.copied, console.width):
        console.print(made, soft_wrap=False)
        console.print()
        return
    if made.title:
        console.print(Text.from_markup(str(made.title), style="bold"))
    for text in records(made, made.copied, console.width):
        console.print(text)


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
    with err.status(Text(what), spinner="line") as status:
        yield lambda news: status.update(Text(printable(f"{what}: {news}")))
