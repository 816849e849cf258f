"""The runbook, docs/operations.md, as a page: what to do, without leaving the network at night."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup, escape
from starlette.responses import Response

from tarry.web.dashboard.rendering import anchor
from tarry.web.dashboard.visit import Visit

NAME = "operations.md"
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]*)\)")
_CODE = re.compile(r"`([^`]+)`")
_STRONG = re.compile(r"\*\*([^*]+)\*\*")


async def show(visit: Visit) -> Response:
    return visit.render("runbook.html", text=rendered())


@cache
def rendered() -> Markup:
    return Markup("\n").join(_blocks(_source().split("\n\n")))


def _source() -> str:
    """From the package; from the folder of the documentation in a checkout."""
    packaged = files("tarry.web.dashboard").joinpath(NAME)
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return (Path(__file__).parents[4] / "docs" / NAME).read_text(encoding="utf-8")


def _blocks(blocks: list[str]) -> Iterator[Markup]:
    """The Markdown that the runbook uses: headings, paragraphs, lists, tables, and blocks of commands."""
    code: list[str] = []
    for block in blocks:
        if code or block.startswith("```"):
            code.append(block)
            if block.rstrip().endswith("```") and "\n\n".join(code).count("```") > 1:
                text = "\n\n".join(code).strip().removeprefix("```console").removeprefix("```").removesuffix("```")
                yield Markup('<pre class="payload" tabindex="0">{}</pre>').format(text.strip("\n"))
                code = []
        elif block.strip():
            yield _block(block.strip())


def _block(block: str) -> Markup:
    if found := re.match(r"(#+) (.*)$", block):
        level = min(3, len(found[1]))
        return Markup("<h{0} id='{1}'>{2}</h{0}>").format(level, anchor(found[2]), _inline(found[2]))
    lines = block.splitlines()
    if block.startswith("|"):
        return _table(lines)
    if re.match(r"[-*] |\d+\. ", block):
        items = re.split(r"\n(?=[-*] |\d+\. )", block)
        kind = "ol" if block[0].isdigit() else "ul"
        parts = (Markup("<li>{}</li>").format(_inline(re.sub(r"^([-*]|\d+\.) ", "", one))) for one in items)
        return Markup("<{0}>{1}</{0}>").format(kind, Markup("").join(parts))
    return Markup("<p>{}</p>").format(_inline(block))


def _table(lines: list[str]) -> Markup:
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    head = Markup("").join(Markup('<th scope="col">{}</th>').format(_inline(cell)) for cell in rows[0])
    body = (Markup("").join(Markup("<td>{}</td>").format(_inline(cell)) for cell in row) for row in rows[2:])
    return Markup(
        '<div class="scroll" tabindex="0"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>'
    ).format(head, Markup("").join(Markup("<tr>{}</tr>").format(row) for row in body))


def _inline(text: str) -> Markup:
    """Links within the page stay links; those to other pages of the documentation are only their text."""
    found = str(escape(text.replace("\n", " ")))
    found = _LINK.sub(lambda link: f'<a href="{link[2]}">{link[1]}</a>' if link[2].startswith("#") else link[1], found)
    found = _CODE.sub(r"<code>\1</code>", found)
    return Markup(_STRONG.sub(r"<strong>\1</strong>", found))  # noqa: S704 - escaped above
