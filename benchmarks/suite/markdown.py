"""Tables in Markdown. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A bar inside a cell would end it."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(cell.replace("|", "/").split()) for cell in cells) + " |"

    return "\n".join([line(columns), "|" + "---|" * len(columns), *(line(row) for row in rows), ""])
