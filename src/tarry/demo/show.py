"""`tarry demo`: set up, run the workload, show it, and end with the balance."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.live import Live

from tarry.attach.perform import Request, attach
from tarry.audit.report import Report, report
from tarry.broker.declare import channel
from tarry.demo.scene import Scene, look
from tarry.demo.stage import Stage, Wanted, stage
from tarry.demo.view import line, screen, summary
from tarry.demo.workload import QUEUE, Workload, declare_queue, expected_done, expected_in_review
from tarry.errors import TarryError
from tarry.topology.load import shipped

LONGEST = 100.0
"""Seconds the workload may take; it needs about 25."""

FRAMES_A_SECOND = 5
SECONDS_PER_LINE = 2.0


class DemoError(TarryError):
    """The demo did not come out as it must."""


def demo(
    console: Console, *, series: str | None = None, url: str | None = None, management_url: str | None = None
) -> None:
    """Raises if a message is lost or something is left open. Runs the shipped policies, whose delays suit it."""
    wanted = Wanted(series=series, url=url, management_url=management_url, topology=shipped())
    with stage(wanted, lambda text: console.print(text, style="dim")) as made:
        declare_queue(made.address)
        attach(made.topology, made.address, Request((QUEUE,)))
        console.print(f"{QUEUE} is attached: what its worker rejects is retried.", style="dim")
        console.print(f"Management UI, while this runs: {made.address.management} (user and password: guest)")
        with report(made.dsn) as books:
            with Workload(made.address, made.topology.broker_names.scheduled) as work:
                _watch(console, made, books, work)
            balance = books.balance()
            summary(console, balance, books.drift(), work.tally)
        console.print(f"  ran on {made.broker}; management UI was {made.address.management}")
        if url is not None:
            console.print(f"  {QUEUE}, tarry's queues and what is in review stay on that broker", style="dim")
        console.print("  keep one running with: make up", style="dim")
        if balance.lost:
            raise DemoError(f"{balance.lost} retries are unaccounted for: this is a bug, please report it.")


def _watch(console: Console, made: Stage, books: Report, work: Workload) -> None:
    """Until everything is where it belongs."""
    deadline = time.monotonic() + LONGEST
    show = _Screen(console, made.broker) if console.is_terminal else _Lines(console)
    with channel(made.address, "demo: view") as open_channel, show:
        while True:
            made.check()
            if work.error is not None:
                raise DemoError(f"The worker failed: {work.error!r}") from work.error
            scene = look(made.topology, open_channel, books)
            show.update(scene, work)
            if _finished(scene, work):
                return
            if time.monotonic() > deadline:
                raise DemoError(f"Not everything arrived in {LONGEST:.0f} s: {line(scene, work.tally)}")
            time.sleep(1 / FRAMES_A_SECOND)


def _finished(scene: Scene, work: Workload) -> bool:
    return (
        work.tally.done >= expected_done()
        and scene.balance.in_review >= expected_in_review()
        and scene.balance.waiting == 0
    )


class _Screen:
    """A live picture on a terminal."""

    def __init__(self, console: Console, where: str) -> None:
        self._live = Live(console=console, refresh_per_second=FRAMES_A_SECOND, transient=True)
        self._where = where

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, scene: Scene, work: Workload) -> None:
        self._live.update(screen(scene, work.tally, self._where), refresh=True)


class _Lines:
    """A plain line now and then, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to put back."""

    def update(self, scene: Scene, work: Workload) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + SECONDS_PER_LINE
            self._console.print(line(scene, work.tally), highlight=False, soft_wrap=True)
