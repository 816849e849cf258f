"""Runs `tarry demo`: sets up an installation, runs the workload, displays it, and ends with the audit's balance."""

from __future__ import annotations

import asyncio
import time
from typing import Self

from rich.console import Console
from rich.live import Live

from tarry.amqp.declare import channel
from tarry.attach.apply import AttachRequest, attach
from tarry.audit.status import read_balance, read_drift
from tarry.demo.stage import Stage, StageOptions, stage
from tarry.demo.view import Scene, line, look, screen, summary
from tarry.demo.workload import QUEUE, Tally, Workload, declare_queue, expected_done, expected_in_review
from tarry.errors import TarryError
from tarry.store.database import PostgresSession, open_session
from tarry.store.rows import Balance
from tarry.topology.load import shipped

LONGEST = 100.0
"""The maximum duration of the workload in seconds; it needs about 25."""

FRAMES_A_SECOND = 5
SECONDS_PER_LINE = 2.0


class DemoError(TarryError):
    """The demo did not end with the expected result."""


def demo(
    console: Console, *, series: str | None = None, url: str | None = None, management_url: str | None = None
) -> None:
    """Raises if a message is lost or anything is left open. Uses the shipped policies, whose delays suit the demo."""
    wanted = StageOptions(series=series, url=url, management_url=management_url, topology=shipped())
    with stage(wanted, lambda text: console.print(text, style="dim")) as made:
        declare_queue(made.address)
        attach(made.topology, made.address, AttachRequest((QUEUE,)))
        console.print(f"{QUEUE} is attached: what its worker rejects is retried.", style="dim")
        console.print(f"Management UI, while this runs: {made.address.management} (user and password: guest)")
        balance = asyncio.run(_run(console, made))
        console.print(f"  ran on {made.broker}; management UI was {made.address.management}")
        if url is not None:
            console.print(f"  {QUEUE}, tarry's queues and what is in review stay on that broker", style="dim")
        console.print("  keep one running with: tarry up (in a checkout: make up)", style="dim")
        if balance.lost:
            raise DemoError(f"{balance.lost} retries are unaccounted for: this is a bug, please report it.")


async def _run(console: Console, made: Stage) -> Balance:
    """Runs the workload to its end, and shows the audit's balance."""
    async with open_session(made.dsn) as session:
        with Workload(made.address, made.topology.broker_names.scheduled) as work:
            await _watch(console, made, session, work)
        balance = await read_balance(session)
        summary(console, balance, await read_drift(session), work.tally)
    return balance


async def _watch(console: Console, made: Stage, session: PostgresSession, work: Workload) -> None:
    """Updates the display until every message has reached its final state."""
    deadline = time.monotonic() + LONGEST
    show = _Screen(console, made.broker) if console.is_terminal else _Lines(console)
    with channel(made.address, "demo: view") as open_channel, show:
        while True:
            made.check()
            if work.error is not None:
                raise DemoError(f"The worker failed: {work.error!r}") from work.error
            scene = await look(made.topology, open_channel, session)
            show.update(scene, work)
            if finished(scene.balance, work.tally):
                return
            if time.monotonic() > deadline:
                raise DemoError(f"Not everything arrived in {LONGEST:.0f} s: {line(scene, work.tally)}")
            await asyncio.sleep(1 / FRAMES_A_SECOND)


def finished(balance: Balance, tally: Tally) -> bool:
    """Whether every message is in its final state and the audit has recorded all of it.

    The tap may record a return later than the router records the failure after it; until then the round is unseen.
    """
    return (
        tally.done >= expected_done()
        and balance.in_review >= expected_in_review()
        and balance.waiting == balance.claimed == balance.unseen == 0
    )


class _Screen:
    """A live display on a terminal."""

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
    """A plain line at intervals, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to restore."""

    def update(self, scene: Scene, work: Workload) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + SECONDS_PER_LINE
            self._console.print(line(scene, work.tally), highlight=False, soft_wrap=True)
