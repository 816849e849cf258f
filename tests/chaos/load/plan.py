"""What is meant to become of each message: drawn from the seed and its number, so that every process agrees on it."""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import asdict, dataclass
from typing import Any, Literal

REJECTS = "chaos.rejects"
"""Attached: its consumer rejects what fails."""
ASKS = "chaos.asks"
"""Its consumer asks for each retry with headers, and acknowledges then."""

SCHEDULE_MS = (1_000, 1_500, 2_000)
MAX_RETRIES = 3
FINAL = 0.04
EXHAUSTED = 0.05
HINTED = 0.3
LIGHT = 0.85

Form = Literal["reject", "headers"]


@dataclass(frozen=True, slots=True)
class Task:
    """One numbered message."""

    number: int
    message_id: str
    queue: str
    form: Form
    fails: int
    """How often its consumer fails it; with headers the first failure is the producer's own."""
    hint_ms: int = 0
    """`retry_after_ms` of the first request."""
    final: bool = False

    @property
    def ends_in_review(self) -> bool:
        return self.final or self.fails > MAX_RETRIES

    @property
    def rounds(self) -> int:
        """How often it returns."""
        return 0 if self.final else min(self.fails, MAX_RETRIES)

    @property
    def arrivals(self) -> int:
        """How often its consumer sees it."""
        return self.rounds + (self.form == "reject")

    def shortest_wait_ms(self, round_: int, schedule_ms: tuple[int, ...] = SCHEDULE_MS) -> int:
        wait = schedule_ms[min(round_, len(schedule_ms)) - 1]
        return max(wait, self.hint_ms) if round_ == 1 else wait

    def body(self) -> bytes:
        """All that a consumer must know, and a checksum to show that it came whole."""
        text = json.dumps(asdict(self)).encode()
        return b"%08x %s" % (zlib.crc32(text), text)


def read_body(body: bytes) -> Task | None:
    """None if it is not what was sent."""
    checksum, _, text = body.partition(b" ")
    if not text or int(checksum, 16) != zlib.crc32(text):
        return None
    return read_task(json.loads(text))


def read_task(fields: dict[str, Any]) -> Task:
    return Task(**fields)


@dataclass(frozen=True, slots=True)
class Plan:
    """All messages of a run, by number."""

    seed: int
    prefix: str
    extra: tuple[str, ...] = ()
    """Queues of a fault's own. They get a share of the requests with headers, and each message is failed once only."""
    light: bool = False
    """Little more than one round for each message: for a long run at a high rate."""

    def task(self, number: int) -> Task:
        draw = random.Random(f"{self.seed}:{self.prefix}:{number}")
        message_id = f"{self.prefix}-{number}"
        if self.extra and draw.random() < 0.3:
            return Task(number, message_id, draw.choice(self.extra), "headers", 1)
        if self.light and draw.random() < LIGHT:
            return Task(number, message_id, ASKS, "headers", 1)
        if draw.random() < 0.6:
            return Task(number, message_id, REJECTS, "reject", _fails(draw, least=0))
        final = draw.random() < FINAL
        hint = draw.randrange(900, 2_500) if draw.random() < HINTED and not final else 0
        return Task(number, message_id, ASKS, "headers", 1 if final else _fails(draw, least=1), hint, final)


def _fails(draw: random.Random, *, least: int) -> int:
    if draw.random() < EXHAUSTED:
        return MAX_RETRIES + 1
    return draw.choices(range(least, MAX_RETRIES + 1), weights=[4, 6, 2, 1][: MAX_RETRIES + 1 - least])[0]
