"""The way of a message as a list of steps, once: the table, the mermaid picture and the SVG are drawn from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tarry.core.durations import format_duration, humanise
from tarry.core.ladder import Ladder
from tarry.core.names import digit_key, enter_key, skip_key
from tarry.topology.model import Topology

After = Literal["onward", "stays", "copy", "home", "router"]
"""What happens to a message in the step's queue: expires to the next step, stays, was only copied, is home, is read."""


@dataclass(frozen=True, slots=True)
class Step:
    """One exchange: which key leads into which queue, and what happens to a message that has no such key."""

    exchange: str
    key: str
    queue: str
    waits: str
    after: After
    otherwise: str
    """How a message gets on without entering the queue; empty for the last step."""
    meaning: str
    queues: tuple[str, ...] = ()
    """The real queues behind `queue`, which may be a pattern."""


def steps(topology: Topology) -> list[Step]:
    """From the failure back home, top to bottom."""
    return [*_out(topology), *_ladder(topology), *_home(topology)]


def review_step(topology: Topology) -> Step:
    """Beside the way: where the router sends what a retry will not mend."""
    names = topology.broker_names
    return Step(
        names.review,
        "",
        names.review_queue,
        "",
        "stays",
        "",
        "retries are spent, the error is final, or the request cannot be read: a person decides",
        (names.review_queue,),
    )


def _out(topology: Topology) -> list[Step]:
    names, tiers = topology.broker_names, sorted(topology.rules.tiers)
    return [
        Step(
            names.intake,
            "",
            names.scheduled,
            "",
            "router",
            "",
            f"retry requests: the router decides how long each waits, or sends it to {names.review_queue}",
            (names.scheduled,),
        ),
        Step(
            names.delay,
            _span(enter_key(tiers[0]), enter_key(tiers[-1])),
            f"{names.prefix}delay.<delay>",
            _span(format_duration(tiers[0]), format_duration(tiers[-1])),
            "onward",
            "~in:ladder",
            "one tier for each delay that a policy names",
            tuple(map(names.tier, tiers)),
        ),
    ]


def _ladder(topology: Topology) -> list[Step]:
    return [_level(topology, level) for level in reversed(range(topology.ladder_shape.levels))]


def _level(topology: Topology, level: int) -> Step:
    names, ladder = topology.broker_names, topology.ladder_shape
    waits = [ladder.ttl(level, digit) for digit in range(1, ladder.radix)]
    return Step(
        names.ladder(level),
        _span(digit_key(level, 1), digit_key(level, ladder.radix - 1)),
        f"{names.prefix}ladder.{level}.<wait>",
        _span(humanise(waits[0]), humanise(waits[-1])),
        "onward",
        _span(skip_key(level, level - 1 if level else None), skip_key(level, None)),
        _level_meaning(ladder, level, names.unroutable),
        tuple(names.ladder_tier(level, wait) for wait in waits),
    )


def _level_meaning(ladder: Ladder, level: int, unroutable: str) -> str:
    return f"what no tier covers, in steps of {humanise(ladder.ttl(level, 1))}; neither digit nor skip: {unroutable}"


def _home(topology: Topology) -> list[Step]:
    names = topology.broker_names
    to, label = "~to:<queue>", "<queue>"
    relay, held = f"{names.prefix}relay.{label}", f"{names.prefix}held.{label}"
    return [
        Step(
            names.cancelled_gate,
            "~id:<retry>:<round>",
            names.cancelled,
            "",
            "stays",
            "else",
            "cancelled before it came due",
            (names.cancelled,),
        ),
        Step(
            names.relay,
            to,
            relay,
            "0",
            "onward",
            "else, shared",
            "passes at once; keeps a destination that rejects from stalling the tiers of all others",
            (names.relay,),
        ),
        Step(names.held_gate, to, held, "", "stays", "else", "its destination is paused; sent on when resumed"),
        Step(
            names.arrive,
            "",
            names.audit,
            "",
            "copy",
            "and",
            "the tap: proof of each return, read into Postgres",
            (names.audit,),
        ),
        Step(names.deliver, to, "the queue it failed in", "", "home", "else", "back where it failed"),
        Step(
            names.unroutable,
            "",
            names.unroutable,
            "",
            "stays",
            "",
            "no destination, or a tier is missing: the service puts it right; never early, never lost",
            (names.unroutable,),
        ),
    ]


def _span(first: str, last: str) -> str:
    return first if first == last else f"{first} … {last}"
