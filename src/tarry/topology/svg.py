"""The way of a message as an SVG: exchanges down the left, the queue each leads to on the right, "else" going down."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from tarry.topology.model import Topology
from tarry.topology.steps import Step, steps

WIDTH, ROW, TOP = 1080, 74, 92
BOX_HEIGHT = 40
LEFT, BOX = 40, 210
QUEUE_LEFT, QUEUE = 500, 250
TEXT_LEFT = QUEUE_LEFT + QUEUE + 24
MEANING_CHARACTERS = 42

STYLE = """
text { font-family: ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 13px; fill: #1d2733 }
.name { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 12.5px }
.key { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 11.5px; fill: #44546a }
.small { font-size: 11.5px; fill: #5b6776 }
.title { font-size: 18px; font-weight: 600 }
.exchange { fill: #e8f0fe; stroke: #4a6fa5 }
.queue { fill: #fff4de; stroke: #c08a2b }
.home { fill: #e3f4e3; stroke: #4f8f4f }
.line { stroke: #6b7a8d; stroke-width: 1.4; fill: none; marker-end: url(#arrow) }
.expires { stroke: #c08a2b; stroke-dasharray: 5 4 }
"""


def svg(topology: Topology) -> str:
    way = steps(topology)
    height = TOP + ROW * len(way) + 16
    return "\n".join([*_head(height), *(part for row, step in enumerate(way) for part in _row(row, step)), "</svg>\n"])


def _head(height: int) -> Iterator[str]:
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
    yield f"<style>{STYLE}</style>"
    yield (
        '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="#6b7a8d"/></marker></defs>'
    )
    yield f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    yield _text(LEFT, 38, "The way of one message, from its failure back home", "title")
    yield _text(
        LEFT,
        62,
        "Blue: an exchange. Amber: a queue. Right: the message has that key. Down: it has not. Dashed: its time is up.",
        "small",
    )


def _row(row: int, step: Step) -> Iterator[str]:
    top = TOP + row * ROW
    middle = top + BOX_HEIGHT // 2
    yield _box(LEFT, top, BOX, "exchange", step.exchange)
    yield f'<path class="line" d="M{LEFT + BOX} {middle} H{QUEUE_LEFT - 2}"/>'
    yield _text((LEFT + BOX + QUEUE_LEFT) // 2, middle - 7, step.key or "every message", "key", anchor="middle")
    yield _box(QUEUE_LEFT, top, QUEUE, "home" if step.after == "home" else "queue", step.queue)
    yield from _beside(step, top)
    yield from _down(step, top)


def _beside(step: Step, top: int) -> Iterator[str]:
    waits = f"waits {step.waits}: " if step.waits not in ("", "0") else ""
    for line, words in enumerate(_wrapped(waits + step.meaning)):
        yield _text(TEXT_LEFT, top + 13 + 15 * line, words, "small")


def _down(step: Step, top: int) -> Iterator[str]:
    bottom, following = top + BOX_HEIGHT, top + ROW
    if step.otherwise:
        x = LEFT + 40
        yield f'<path class="line" d="M{x} {bottom} V{following - 2}"/>'
        yield _text(x + 10, bottom + 21, step.otherwise, "key")
    if step.after == "onward":
        start, turn, end = QUEUE_LEFT + 30, bottom + 17, LEFT + BOX - 14
        yield f'<path class="line expires" d="M{start} {bottom} V{turn} H{end} V{following - 2}"/>'
    if step.after == "router":
        yield f'<path class="line" d="M{QUEUE_LEFT + 30} {bottom} V{bottom + 17} H{LEFT + BOX - 14} V{following - 2}"/>'
        yield _text(LEFT + BOX + 8, bottom + 13, "the router writes the whole way into BCC", "small")


def _box(left: int, top: int, width: int, kind: str, label: str) -> str:
    corner = BOX_HEIGHT // 2 if kind == "exchange" else 6
    shape = f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{BOX_HEIGHT}" rx="{corner}"/>'
    return shape + _text(left + width // 2, top + BOX_HEIGHT // 2 + 4, label, "name", anchor="middle")


def _text(x: int, y: int, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _wrapped(text: str) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > MEANING_CHARACTERS:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
