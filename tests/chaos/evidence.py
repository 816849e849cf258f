"""All that is known of a scene when it is over: the ledger, the arrivals, the review queue and the store."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos.load.paper import Arrival, Entry, Reader, read_ledger
from tests.chaos.load.plan import Task
from tests.chaos.scene import Scene, wait
from tests.chaos.stage import OFFER_AGAIN_MS

REVIEW = "manual-review.pending"
ROWS = """
select message_id, queue, state, round, coalesce(returned_round, 0) from retry
"""
DUPLICATES = "select count(*) from transition where state = 'duplicate'"


@dataclass(frozen=True, slots=True)
class Row:
    """A retry as the store has it."""

    state: str
    round: int
    returned_round: int


@dataclass
class Evidence:
    """Grows while the scene goes on."""

    folder: Path
    entries: dict[int, Entry] = field(default_factory=dict)
    arrivals: dict[int, list[Arrival]] = field(default_factory=lambda: defaultdict(list))
    reviews: Counter[str] = field(default_factory=Counter)
    """How often each message id lies in review."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Of each id in review, the last one's."""
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    """By message id and queue."""
    dropped: int = 0
    """Duplicates that the router noticed and dropped."""
    _readers: dict[str, Reader] = field(default_factory=dict)
    _settled: set[int] = field(default_factory=set)

    def look(self, queues: Iterable[str]) -> None:
        """Read on where the last look ended."""
        read_ledger(self._reader("ledger").new(), self.entries)
        for queue in queues:
            for line in self._reader(f"arrivals.{queue}").new():
                arrival = Arrival(**line)
                self.arrivals[arrival.number].append(arrival)

    def _reader(self, name: str) -> Reader:
        return self._readers.setdefault(name, Reader(self.folder / name))

    @property
    def unsettled(self) -> list[Task]:
        """Messages that have not come to their planned end; those for review cannot be told before it is read."""
        for number, entry in self.entries.items():
            if number not in self._settled and entry.confirmed_ms and self._ended(entry.task):
                self._settled.add(number)
        return [entry.task for number, entry in self.entries.items() if number not in self._settled]

    def _ended(self, task: Task) -> bool:
        seen = self.arrivals.get(task.number, ())
        if task.ends_in_review:
            return task.final or any(arrival.round == task.rounds for arrival in seen)
        return any(arrival.did == "accept" for arrival in seen) or task.message_id in self.reviews

    def read_review(self, scene: Scene) -> None:
        """Takes what lies there for good."""
        with scene.channel() as channel:
            while True:
                method, properties, _ = channel.basic_get(REVIEW, auto_ack=False)
                if method is None or properties is None:
                    return
                message_id = str(properties.message_id)
                self.reviews[message_id] += 1
                headers: Mapping[str, Any] = properties.headers or {}
                self.reasons[message_id] = str(headers.get("review_reason"))
                channel.basic_ack(method.delivery_tag or 0)

    def read_store(self, scene: Scene) -> None:
        with psycopg.connect(scene.dsn) as connection:
            found = connection.execute(ROWS).fetchall()
            dropped = connection.execute(DUPLICATES).fetchone()
        self.rows = {(row[0], row[1]): Row(*row[2:]) for row in found}
        self.dropped = int(dropped[0]) if dropped else 0


def quiet(scene: Scene, deadline: float = 60) -> str | None:
    """Until nothing of tarry's lies anywhere but in review, so that late copies are counted; else what lies there."""
    end = time.monotonic() + deadline
    while left := _depths(scene):
        if time.monotonic() > end:
            return f"still in tarry's queues: {left}"
        wait(0.3)
    return None


def _depths(scene: Scene) -> dict[str, int]:
    """Asked of the queues themselves: the management API is up to five seconds behind."""
    names = [queue["name"] for queue in scene.vhost.api("queues/{vhost}?columns=name")]
    with scene.channel() as channel:
        found = {
            name: int(channel.queue_declare(name, passive=True).method.message_count)
            for name in names
            if name.startswith("retry.") or name in scene.queues
        }
    return {name: depth for name, depth in found.items() if depth}


def verify(scene: Scene, patience: float = 120) -> tuple[bool, str]:
    """`tarry audit verify`, as an operator would run it; and its words if it is not content."""
    offered_again = f"{OFFER_AGAIN_MS}ms"
    done = scene.command(
        "audit", "verify", "--grace", "5s", "--offered-again", offered_again, "--json", patience=patience
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return False, (done.stderr or done.stdout)[-500:]
    missing = f"{len(answer['missing'])} missing, {len(answer['shortages'])} tiers short, balance {answer['balance']}"
    return done.returncode == 0, missing
