"""What viewers cost the router: its speed out of a full queue, alone and with ten viewers, taking turns.

Each round measures alone, with viewers, and alone again, so that the difference between two runs of the same kind
(A/A) is from the same run, and says how much of the other difference is noise.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import psycopg

from benchmarks.dashboard.pages import NAMED
from benchmarks.router.load import fill
from benchmarks.router.own import serving
from benchmarks.router.stage import Space

VIEWERS = 10

EVERY = 5.0
"""Seconds between two pages of one viewer: as often as the overview is refreshed."""

SEEN = ("overview", "overview", "overview", "destinations", "destination", "review, by fingerprint", "retries, queue")
"""What they look at, in this order, each beginning at another place. During an incident, mostly the overview."""


@dataclass
class Viewers:
    """Ten people with a browser each."""

    url: str
    seen: list[float] = field(default_factory=list)
    """Milliseconds of each page."""
    failed: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def look(self, number: int) -> None:
        pages = itertools.islice(itertools.cycle(SEEN), number, None)
        with httpx.Client(base_url=self.url, timeout=60) as client:
            self._over.wait(EVERY * number / VIEWERS)
            for name in pages:
                if self._over.is_set():
                    return
                began = time.perf_counter()
                try:
                    is_good = client.get(NAMED[name]).is_success
                except httpx.HTTPError:
                    is_good = False
                self.seen.append(1000 * (time.perf_counter() - began))
                self.failed += not is_good
                self._over.wait(EVERY)

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        people = [threading.Thread(target=self.look, args=(number,), daemon=True) for number in range(VIEWERS)]
        for one in people:
            one.start()
        try:
            yield
        finally:
            self._over.set()
            for one in people:
                one.join(60)


def compared(space: Space, *, rounds: int, count: int) -> dict[str, object]:
    alone: list[float] = []
    again: list[float] = []
    watched: list[float] = []
    seen: list[float] = []
    failed = 0
    for _ in range(rounds):
        alone.append(_rate(space, count))
        rate, viewers = _rate_with_viewers(space, count)
        watched.append(rate)
        again.append(_rate(space, count))
        seen += viewers.seen
        failed += viewers.failed
    shares = [rate / ((one + other) / 2) for rate, one, other in zip(watched, alone, again, strict=True)]
    same = [one / other for one, other in zip(alone, again, strict=True)]
    return {
        "per_s": {"alone": _rounded(alone), "ten viewers": _rounded(watched), "alone again": _rounded(again)},
        "share": [round(one, 3) for one in shares],
        "ratio": round(statistics.median(shares), 3),
        "A/A": [round(one, 3) for one in same],
        "A/A median": round(statistics.median(same), 3),
        "A/A spread": round(statistics.pstdev(same), 3),
        "pages": {"seen": len(seen), "failed": failed, "p95_ms": round(sorted(seen)[int(0.95 * (len(seen) - 1))])},
    }


def ratio_of(result: dict[str, object]) -> float:
    return float(str(result["ratio"]))


def failed_of(result: dict[str, object]) -> int:
    """Pages that the viewers did not get."""
    pages = result["pages"]
    return int(str(pages["failed"])) if isinstance(pages, dict) else 0


def _rounded(rates: list[float]) -> list[int]:
    return [round(one) for one in rates]


def _rate(space: Space, count: int) -> float:
    """Requests a second out of a full queue, the ramp at the beginning left out."""
    asyncio.run(fill(space, count))
    with serving(space) as service:
        rate = _measured(service.wait_scheduled(count))
    _forget(space)
    return rate


def _rate_with_viewers(space: Space, count: int) -> tuple[float, Viewers]:
    asyncio.run(fill(space, count))
    with serving(space) as service:
        viewers = Viewers(f"http://127.0.0.1:{service.port}")
        with viewers.looking():
            rate = _measured(service.wait_scheduled(count))
    _forget(space)
    return rate, viewers


def _measured(seen: list[tuple[float, float]]) -> float:
    some = [(at, done) for at, done in seen if done > 0]
    (start, before), (end, after) = some[0], some[-1]
    return (after - before) / (end - start)


def _forget(space: Space) -> None:
    """What a run has scheduled is closed, so that each run begins with the same open retries."""
    with psycopg.connect(space.dsn, autocommit=True) as connection:
        connection.execute("update retry set state = 'succeeded' where policy = 'bench'")
        connection.execute("vacuum analyze retry")
