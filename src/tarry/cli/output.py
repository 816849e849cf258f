"""Output of all commands: lines, tables, JSON, progress bars and confirmations.

Text from outside is escaped: a payload must not be able to clear the screen, or hide what it says.
"""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from textwrap import wrap
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console, JustifyMethod, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.style import StyleType
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from tarry.core.printable import printable
from tarry.errors import SettingsError, TarryError

_KEPT = "\n\t"


def shortened(text: str | None, most: int) -> str:
    """On one line, cut if it is too long."""
    found = printable(text or "")
    return found if len(found) <= most else found[: most - 1] + "…"


def printable_json(text: str) -> str:
    """The same JSON, with everything escaped that is not printable; blanks and line ends stay."""
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(one if one in _KEPT or one.isprintable() else json.dumps(one)[1:-1] for one in text)


def payload_text(body: bytes) -> str | None:
    """The payload as text for a terminal; None if it is not text."""
    try:
        return printable(body.decode(), lines=True)
    except UnicodeDecodeError:
        return None


READABLE = 20
"""Minimum width of a text column, unless its content is narrower."""

GAP = 2


def fits(table: Table, copied: Collection[str], width: int) -> bool:
    """Whether each column has enough room; values that people copy must be on one line."""
    needed = 0
    for column in table.columns:
        natural = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
        needed += natural if column.no_wrap or column.header in copied else min(natural, READABLE)
    return needed + GAP * (len(table.columns) - 1) <= width


def records(table: Table, copied: Collection[str], width: int) -> Iterator[Text]:
    """Values that people copy have a line of their own; the other cells share lines."""
    headers = [str(column.header) for column in table.columns]
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        filled = [(name, str(cell)) for name, cell in zip(headers, cells, strict=True) if str(cell)]
        own = [f"{name}: {cell}" for name, cell in filled if name in copied]
        shared = [f"{name}: {cell}" if name else cell for name, cell in filled if name not in copied]
        for number, line in enumerate([*own, *_packed(shared, max(width - GAP, READABLE))]):
            yield Text(" " * GAP * bool(number) + line)
        yield Text()


def _packed(parts: Sequence[str], width: int) -> Iterator[str]:
    """Does not break ids in the middle of a text."""
    line = ""
    for part in chain.from_iterable(
        wrap(part, width, break_long_words=False, break_on_hyphens=False) for part in parts
    ):
        if line and cell_len(line) + GAP + cell_len(part) > width:
            yield line
            line = ""
        line = f"{line}{' ' * GAP}{part}" if line else part
    if line:
        yield line


INTERRUPTED = 130

AS_JSON = "tarry.json"
"""Set in `meta` of the command's context if its output is JSON."""

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


class Commands(TyperGroup):
    """A group of commands in which a TarryError is one message on stderr and an exit code, never a traceback."""

    def invoke(self, ctx: Any) -> Any:
        # Pika logs each failure in a dozen lines before it raises, and the pool logs each attempt; our error is one
        # line.
        logging.getLogger("pika").setLevel(logging.CRITICAL)
        logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
        try:
            return super().invoke(ctx)
        except TarryError as error:
            print_error(error)
            if ctx.meta.get(AS_JSON):
                print_json(error_report(error))
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            note("interrupted")
            raise typer.Exit(INTERRUPTED) from None


def list_by_default(context: typer.Context) -> None:
    """In the callback of a group: without a command, it lists."""
    if context.invoked_subcommand is None:
        command = context.command.commands["list"]  # type: ignore[attr-defined] # a group has them
        with command.make_context("list", [], parent=context) as alone:
            command.invoke(alone)


def print_error(error: TarryError | str) -> None:
    """`error: …`, one line for each problem."""
    for line in str(error).splitlines() or [type(error).__name__]:
        err.print(Text.assemble(("error:", "bold red"), " ", printable(line)))


def error_report(error: TarryError) -> dict[str, Any]:
    """The error for JSON output, with its stable code."""
    return {"error": str(error), "code": str(error.code), **error.details}


def line(text: str, mark: str = "", style: str = "") -> None:
    """One line of output: line ends in the text are escaped."""
    out.print(Text.assemble((f"{mark} " if mark else "", style), printable(text)))


def block(text: str) -> None:
    """A text with its own line ends, such as a payload."""
    out.print(Text(printable(text, lines=True)))


def warn(text: str) -> None:
    """`warning: …` on one line, on stderr."""
    err.print(Text.assemble(("warning:", "bold yellow"), " ", printable(text)))


def note(text: str) -> None:
    """Additional information, on stderr."""
    err.print(Text(printable(text, lines=True), style="dim"))


def export_lines(rabbitmq_url: str, management_url: str, database_url: str | None) -> list[str]:
    """The addresses of an installation as lines to paste into a shell."""
    variables = {
        "RABBITMQ_URL": rabbitmq_url,
        "RABBITMQ_MANAGEMENT_URL": management_url,
        "DATABASE_URL": database_url,
    }
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items() if value]


def confirm(what: str, *, yes: bool, why: str = "This is a large operation") -> None:
    """Asks before an operation that cannot be undone; refuses it where there is no terminal."""
    if yes:
        return
    if not (sys.stdin.isatty() and err.is_terminal):
        raise SettingsError(f"{what} {why}: confirm with --yes.")
    if not typer.confirm(printable(f"{what} Continue?"), err=True):
        raise SettingsError("Nothing was done.")


def print_json(data: Any) -> None:
    """Written to stdout directly: rich would wrap and colour it. In ASCII unless the output is in UTF-8."""
    in_ascii = out.encoding != "utf-8"
    typer.echo(printable_json(json.dumps(data, indent=2, ensure_ascii=in_ascii)))


class PlainTable(Table):
    """A table whose cells are plain text: rich would read them as markup."""

    copied: Collection[str] = ()
    """Columns with ids and names that people copy: never cut or wrapped."""

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
    """In a pipe a table is as wide as its content; on a terminal, one that is too wide is printed as records."""
    console = out if out.is_terminal else Console(highlight=False, width=10_000)
    if not made.copied or fits(made, made.copied, console.width):
        console.print(made, soft_wrap=False)
        console.print()
        return
    if made.title:
        console.print(Text.from_markup(str(made.title), style="bold"))
    for text in records(made, made.copied, console.width):
        console.print(text)


def _is_shown(*, quiet: bool) -> bool:
    """Whether progress is shown. Colours may be forced for a pipe, but only a terminal has a cursor to move."""
    return not quiet and err.is_terminal and err.file.isatty()


@contextmanager
def progress_bar(what: str, *, quiet: bool = False) -> Iterator[Progress]:
    """On stderr, only on a terminal; removed when done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[at]}"))
    shown = Progress(*columns, console=err, transient=True, disable=not _is_shown(quiet=quiet))
    with shown:
        shown.add_task(what, total=None, at="")
        yield shown


@contextmanager
def waiting(what: str, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A spinner on stderr, only on a terminal, for a wait of unknown length; call it with the current progress."""
    if not _is_shown(quiet=quiet):
        yield lambda _progress: None
        return
    with err.status(Text(what), spinner="line") as status:
        yield lambda progress: status.update(Text(printable(f"{what}: {progress}")))
