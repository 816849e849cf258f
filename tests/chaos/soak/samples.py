"""Samples the resources that a router, a broker and Postgres use, and checks that they do not grow."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.chaos.scene import Scene

EVERY = 5.0
"""Seconds between two samples."""

PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20
WARM_UP = 1 / 6
"""The share of the run that is not judged: caches fill, and Python's allocator finds its size."""

MEMORY = ("router_mib", "broker_mib", "judge_mib")
NUMBERS = ("router_descriptors", "router_threads", "connections", "channels", "postgres_connections")
MORE_MEMORY, MORE_MIB, MORE = 1.10, 16, 2
RULE = (
    f"the first sixth is left out; of the rest the median of the last third may be above that of the first third by "
    f"{MORE_MEMORY - 1:.0%} and {MORE_MIB} MiB for memory, and by {MORE} for everything else"
)


@dataclass(frozen=True, slots=True)
class Sample:
    """At one moment. None where nobody could tell: the service was down."""

    at_s: float
    router_mib: float | None
    router_descriptors: int | None
    router_threads: int | None
    connections: int | None
    channels: int | None
    broker_mib: float | None
    postgres_connections: int | None
    judge_mib: float | None
    under_way: int


def sample(scene: Scene, since: float, under_way: int) -> Sample:
    """Of the router that lasts, of the broker's connections in this vhost, and of ourselves."""
    router = scene.routers[0].process.pid
    connections, channels = _connections(scene)
    return Sample(
        round(time.monotonic() - since, 1),
        _memory(router),
        _entries(router, "fd"),
        _entries(router, "task"),
        connections,
        channels,
        _broker_memory(scene),
        _postgres_connections(scene),
        _memory(os.getpid()),
        under_way,
    )


def _memory(pid: int) -> float | None:
    with contextlib.suppress(OSError):
        return round(int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE / MIB, 1)
    return None


def _entries(pid: int, folder: str) -> int | None:
    with contextlib.suppress(OSError):
        return sum(1 for _ in Path(f"/proc/{pid}/{folder}").iterdir())
    return None


def _connections(scene: Scene) -> tuple[int | None, int | None]:
    try:
        found = scene.vhost.api("vhosts/{vhost}/connections")
        return len(found), sum(int(one.get("channels") or 0) for one in found)
    except Exception:  # noqa: BLE001  the broker is down, or between two states: there is no number then
        return None, None


def _broker_memory(scene: Scene) -> float | None:
    try:
        return round(float(scene.vhost.api("nodes")[0]["mem_used"]) / MIB, 1)
    except Exception:  # noqa: BLE001  as above
        return None


def _postgres_connections(scene: Scene) -> int | None:
    question = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    try:
        with psycopg.connect(scene.dsn, connect_timeout=2) as connection:
            row = connection.execute(question).fetchone()
        return int(row[0]) if row else None
    except psycopg.Error:
        return None


@dataclass(frozen=True, slots=True)
class Trend:
    """One measure over the run."""

    name: str
    first: float
    last: float
    most: float
    flat: bool


def trends(samples: Sequence[Sample]) -> list[Trend]:
    return [found for name in (*MEMORY, *NUMBERS) if (found := trend(name, samples)) is not None]


def trend(name: str, samples: Sequence[Sample]) -> Trend | None:
    """None where there is too little to tell."""
    values = [value for one in samples[int(len(samples) * WARM_UP) :] if (value := getattr(one, name)) is not None]
    third = len(values) // 3
    if not third:
        return None
    first, last = statistics.median(values[:third]), statistics.median(values[-third:])
    bound = first * MORE_MEMORY + MORE_MIB if name in MEMORY else first + MORE
    return Trend(name, first, last, max(values), last <= bound)
