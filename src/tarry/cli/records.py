"""A table that is too wide for the terminal, as one block of lines for each row."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from textwrap import wrap

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

READABLE = 20
"""A column of text needs so much room, or all that it takes if that is less."""

GAP = 2


def fits(table: Table, copied: Collection[str], width: int) -> bool:
    """Whether each column has enough room; what people copy must be on one line."""
    needed = 0
    for column in table.columns:
        natural = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
        needed += natural if column.no_wrap or column.header in copied else min(natural, READABLE)
    return needed + GAP * (len(table.columns) - 1) <= width


def records(table: Table, copied: Collection[str], width: int) -> Iterator[Text]:
    """What people copy has a line of its own; the other cells share lines, as many as there is room for."""
    headers = [str(column.header) for column in table.columns]
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        filled = [(name, str(cell)) for name, cell in zip(headers, cells, strict=True) if str(cell)]
        own = [f"{name}: {cell}" for name, cell in filled if name in copied]
        shared = [f"{name}: {cell}" if name else cell for name, cell in filled if name not in copied]
        for number, line in enumerate([*own, *_packed(shared, max(width - GAP, READABLE))]):
            yield Text(" " * GAP * bool(number) + line)
        yield Text()


def _packed(parts: Sequence[str], width: int) -> Iterator[str]:
    """An id in the middle of a text is not broken in two either."""
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
