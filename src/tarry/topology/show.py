"""Describes a message's path as a list of steps; the table, the Mermaid diagram and the SVG are all made from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Literal

from tarry.core.durations import format_duration, humanise
from tarry.core.ladder import Ladder
from tarry.core.names import (
    AUTOMATIC,
    ENTER_LADDER,
    LAYOVER,
    Check,
    Destination,
    Gate,
    Names,
    digit_key,
    enter_key,
    id_key,
    skip_key,
)
from tarry.topology.model import Topology

After = Literal["onward", "stays", "copy", "home", "router", "again", "checked"]
"""What happens to a message in the step's queue: it expires to the next step, stays there, is only a copy, has returned
to its origin, is consumed by the router, is sent through the tiers by it again, or is rejected or expires to the next
step unless a consumer skips it."""


@dataclass(frozen=True, slots=True)
class RouteStep:
    """One exchange: which key leads to which queue, and what happens to a message without such a key."""

    exchange: str
    key: str
    queue: str
    waits: str
    after: After
    otherwise: str
    """How a message continues without entering the queue; empty for the last step."""
    meaning: str
    queues: tuple[str, ...] = ()
    """The actual queues behind `queue`, which may be a pattern."""


def steps(topology: Topology) -> list[RouteStep]:
    """All steps in order, from the failure back to the origin."""
    return [*_out(topology), *_ladder(topology), *_home(topology)]


def review_step(topology: Topology) -> RouteStep:
    """The step outside the path: where the router sends messages that a retry cannot fix."""
    names = topology.broker_names
    return RouteStep(
        names.review,
        "",
        names.review_queue,
        "",
        "stays",
        "",
        "retries are exhausted, the error is final, or the request cannot be read: an operator decides",
        (names.review_queue,),
    )


def _out(topology: Topology) -> list[RouteStep]:
    names, tiers = topology.broker_names, sorted(topology.rules.tiers)
    return [
        RouteStep(
            names.intake,
            "",
            names.scheduled,
            "",
            "router",
            "",
            f"retry requests: the router decides how long each waits, or sends it to {names.review_queue}",
            (names.scheduled,),
        ),
        RouteStep(
            names.delay,
            _span(enter_key(tiers[0]), enter_key(tiers[-1])) if tiers else "",
            names.tier("<delay>"),
            _span(format_duration(tiers[0]), format_duration(tiers[-1])) if tiers else "",
            "onward",
            ENTER_LADDER,
            "one tier for each delay that a policy names",
            (*map(names.tier, tiers), *_tiers_of_lanes(topology)),
        ),
    ]


def _tiers_of_lanes(topology: Topology) -> Iterator[str]:
    names, rules = topology.broker_names, topology.rules
    return (names.tier(ms, lane) for lane in rules.lanes for ms in sorted(rules.tiers_of(lane)))


def _ladder(topology: Topology) -> list[RouteStep]:
    return [_level(topology, level) for level in reversed(range(topology.ladder_shape.levels))]


def _level(topology: Topology, level: int) -> RouteStep:
    names, ladder = topology.broker_names, topology.ladder_shape
    waits = [ladder.ttl(level, digit) for digit in range(1, ladder.radix)]
    return RouteStep(
        names.ladder(level),
        _span(digit_key(level, 1), digit_key(level, ladder.radix - 1)),
        names.ladder_queue(level, "<wait>"),
        _span(humanise(waits[0]), humanise(waits[-1])),
        "onward",
        _span(skip_key(level, level - 1 if level else None), skip_key(level, None)),
        _level_meaning(ladder, level, names.unroutable),
        tuple(names.ladder_queue(level, wait, lane) for lane in (None, *topology.lanes) for wait in waits),
    )


def _level_meaning(ladder: Ladder, level: int, unroutable: str) -> str:
    return f"other delays, in steps of {humanise(ladder.ttl(level, 1))}; neither digit nor skip: {unroutable}"


def _home(topology: Topology) -> list[RouteStep]:
    names = topology.broker_names
    any_queue = Destination("queue", "<queue>")
    relay, held = names.relay_queue(any_queue), names.held_queue(any_queue)
    return [
        RouteStep(
            names.cancelled_gate,
            id_key("<retry>", "<round>"),
            names.cancelled,
            "",
            "stays",
            "else",
            "cancelled before it came due",
            (names.cancelled,),
        ),
        RouteStep(
            names.relay,
            LAYOVER,
            names.layover,
            "",
            "again",
            "else",
            "its delay is longer than the ladder holds: the router sends it for the rest",
            (names.layover,),
        ),
        RouteStep(
            names.relay,
            any_queue.key,
            relay,
            "0",
            "onward",
            "else, shared",
            "passes at once; keeps a destination that rejects from stalling the tiers of all others",
            (names.relay, *map(names.relay_of, topology.lanes)),
        ),
        RouteStep(
            names.held_gate,
            any_queue.key,
            held,
            "",
            "stays",
            "else",
            "its destination is paused; released when resumed",
        ),
        RouteStep(
            names.check_gate,
            Check("<policy>", 0).key.replace("0ms", "<wait>"),
            names.check_queue("<policy>", "<wait>"),
            "",
            "checked",
            "else",
            "its policy asks before it returns: a consumer skips it, or rejects it, and it goes on",
            tuple(names.check_queue(*check) for check in sorted(topology.rules.checks)),
        ),
        *(_gate(names, gate, meaning) for gate, meaning in _GATES),
        RouteStep(
            names.home,
            "",
            names.audit,
            "",
            "copy",
            "and",
            "the tap: a copy of each return, recorded in Postgres",
            (names.audit,),
        ),
        RouteStep(
            names.deliver,
            any_queue.key,
            "the queue it failed in",
            "",
            "home",
            "else",
            "returned to the queue it failed in",
        ),
        RouteStep(
            names.unroutable,
            "",
            names.unroutable,
            "",
            "stays",
            "",
            "no destination, or a tier is missing: the service publishes it again; never early, never lost",
            (names.unroutable,),
        ),
    ]


_GATES = (
    (AUTOMATIC, "automatic retries are paused; manual ones lack the key and pass"),
    (Gate("policy", "<policy>"), "its policy is paused"),
    (Gate("job-type", "<type>"), "its job type is paused"),
)


def _gate(names: Names, gate: Gate, meaning: str) -> RouteStep:
    queue = names.held_queue(gate)
    queues = (queue,) if gate == AUTOMATIC else ()
    return RouteStep(names.gate(gate.kind), gate.key, queue, "", "stays", "else", meaning, queues)


def _span(first: str, last: str) -> str:
    return first if first == last else f"{first} … {last}"


STYLES = (
    "classDef exchange fill:#e8f0fe,stroke:#4a6fa5,color:#16324f",
    "classDef queue fill:#fff4de,stroke:#c08a2b,color:#4a3208",
    "classDef actor fill:#eaf6ea,stroke:#5b8f5b,color:#1f3d1f",
)


def mermaid(topology: Topology) -> str:
    """Exchanges are hexagons, queues are cylinders, and "else" is the alternate exchange."""
    way = steps(topology)
    return "\n".join(["flowchart TD", *(f"  {part}" for part in (*_start(topology), *_arrows(way), *STYLES))]) + "\n"


def _start(topology: Topology) -> Iterator[str]:
    names = topology.broker_names
    yield 'worker(["your consumer rejects"]):::actor -. "dead-letters to" .-> e0'
    yield "q0 --> router"
    yield 'router(["the router decides"]):::actor -- "BCC: the whole path" --> e1'
    yield f'router -- "exhausted or final" --> review{{{{"{names.review}"}}}}:::exchange'
    yield f'review --> reviewq[("{names.review_queue}")]:::queue'


def _arrows(way: list[RouteStep]) -> Iterator[str]:
    last = len(way) - 1
    for place, step in enumerate(way):
        key = f' -- "{_text(step.key)}"' if step.key else ""
        yield f'e{place}{{{{"{step.exchange}"}}}}:::exchange{key} --> q{place}[("{_label(step)}")]:::queue'
        if step.after == "onward":
            yield f'q{place} -. "expires" .-> e{place + 1}'
        if step.after == "again":
            yield f'q{place} -. "the router sends it for the rest" .-> e1'
        if step.after == "checked":
            yield f'q{place} -. "rejected, or expires" .-> e{place + 1}'
        if step.otherwise and place < last:
            yield f'e{place} -- "{_text(step.otherwise)}" --> e{place + 1}'
        if step.otherwise == skip_key(0, None):
            yield f'e{place} -. "no key, at any level" .-> e{last}'


def _label(step: RouteStep) -> str:
    waits = f"<br>waits {step.waits}" if step.waits not in ("", "0") else ""
    return _text(step.queue) + waits


def _text(text: str) -> str:
    """Mermaid parses < as HTML and ~ at the start of a label as markup."""
    return text.replace("<", "#lt;").replace(">", "#gt;").replace("~", "#126;")


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


TITLE = "The path of one message, from its failure back to its queue"
ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
    'orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="#6b7a8d"/></marker></defs>'
)


def svg(topology: Topology) -> str:
    """A file of its own: with its style and a background."""
    way = steps(topology)
    height = TOP + ROW * len(way) + 16
    rows = (part for row, step in enumerate(way) for part in _row(row, step))
    return "\n".join([*_head(height), *rows, "</svg>\n"])


def svg_for_page(topology: Topology, depths: Mapping[str, int]) -> str:
    """A part of a page, which styles its classes; with the messages that are in the queues now."""
    way = steps(topology)
    height = TOP + ROW * len(way) + 16
    rows = (part for row, step in enumerate(way) for part in (*_row(row, step), *_depth(row, step, depths)))
    opening = f'<svg class="topology" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{TITLE}">'
    return "\n".join([opening, *_legend(), *rows, "</svg>\n"])


def _depth(row: int, step: RouteStep, depths: Mapping[str, int]) -> Iterator[str]:
    """What is in the queues of this step; nothing for the queues that belong to others."""
    pattern = re.compile(re.sub(r"<[^>]*>", ".*", step.queue.replace(".", r"\.")))
    found = sum(number for name, number in depths.items() if name in step.queues or pattern.fullmatch(name))
    if found:
        y = TOP + row * ROW + BOX_HEIGHT + 15
        yield _svg_text(QUEUE_LEFT + QUEUE - 8, y, f"{found:,} now", "depth", anchor="end")


def _head(height: int) -> Iterator[str]:
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
    yield f"<style>{STYLE}</style>"
    yield ARROW
    yield f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    yield from _titles()


def _legend() -> Iterator[str]:
    yield ARROW
    yield from _titles()


def _titles() -> Iterator[str]:
    yield _svg_text(LEFT, 38, TITLE, "title")
    yield _svg_text(
        LEFT,
        62,
        "Blue: an exchange. Amber: a queue. Right: the message has that key. Down: it does not. Dashed: it expires.",
        "small",
    )


def _row(row: int, step: RouteStep) -> Iterator[str]:
    top = TOP + row * ROW
    middle = top + BOX_HEIGHT // 2
    yield _box(LEFT, top, BOX, "exchange", step.exchange)
    yield f'<path class="line" d="M{LEFT + BOX} {middle} H{QUEUE_LEFT - 2}"/>'
    yield _svg_text((LEFT + BOX + QUEUE_LEFT) // 2, middle - 7, step.key or "every message", "key", anchor="middle")
    yield _box(QUEUE_LEFT, top, QUEUE, "home" if step.after == "home" else "queue", step.queue)
    yield from _beside(step, top)
    yield from _down(step, top)


def _beside(step: RouteStep, top: int) -> Iterator[str]:
    waits = f"waits {step.waits}: " if step.waits not in ("", "0") else ""
    for line, words in enumerate(_wrapped(waits + step.meaning)):
        yield _svg_text(TEXT_LEFT, top + 13 + 15 * line, words, "small")


def _down(step: RouteStep, top: int) -> Iterator[str]:
    bottom, following = top + BOX_HEIGHT, top + ROW
    if step.otherwise:
        x = LEFT + 40
        yield f'<path class="line" d="M{x} {bottom} V{following - 2}"/>'
        yield _svg_text(x + 10, bottom + 21, step.otherwise, "key")
    if step.after in ("onward", "checked"):
        start, turn, end = QUEUE_LEFT + 30, bottom + 17, LEFT + BOX - 14
        yield f'<path class="line expires" d="M{start} {bottom} V{turn} H{end} V{following - 2}"/>'
    if step.after == "router":
        yield f'<path class="line" d="M{QUEUE_LEFT + 30} {bottom} V{bottom + 17} H{LEFT + BOX - 14} V{following - 2}"/>'
        yield _svg_text(LEFT + BOX + 8, bottom + 13, "the router writes the whole path into BCC", "small")


def _box(left: int, top: int, width: int, kind: str, label: str) -> str:
    corner = BOX_HEIGHT // 2 if kind == "exchange" else 6
    shape = f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{BOX_HEIGHT}" rx="{corner}"/>'
    return shape + _svg_text(left + width // 2, top + BOX_HEIGHT // 2 + 4, label, "name", anchor="middle")


def _svg_text(x: int, y: int, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _wrapped(text: str) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > MEANING_CHARACTERS:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
