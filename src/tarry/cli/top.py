"""`tarry top`: the state of the installation on the whole screen, read again and again.

Without a terminal, and with --once or --json, it is read once. Exit code 1 then means that something could not be read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import termios
import tty
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console, ConsoleDimensions
from rich.live import Live

from tarry.cli.installation import duration
from tarry.cli.logs import set_up_command_logs
from tarry.cli.operator_command import operator_command
from tarry.cli.options import AsJson
from tarry.cli.output import out, print_json
from tarry.cli.top_view import UNLIMITED, Display, TopSnapshot, TopTotals, screen, snapshot_json
from tarry.errors import SettingsError, TarryError
from tarry.operations.protocol import Operations
from tarry.tasks import sleep_unless

READ_WITHIN = 15.0
"""Seconds after which a part of a snapshot counts as unreadable."""

TOTALS_EVERY = 60.0
"""Seconds between two readings of the totals, which group the whole history."""

TOTALS_SHARE = 20
"""The time between two readings of the totals is at least this many times that of one reading."""

SHORTEST = timedelta(milliseconds=100)
MOST_STUCK = 200
DRAW_EVERY = 1.0
QUIT = {b"q", b"Q", b""}
"""The keys that end it; nothing is read from a terminal that is gone."""

T = TypeVar("T")


def register(app: typer.Typer) -> None:
    app.command("top")(operator_command(top, only_looks=True))


async def top(
    *,
    operations: Operations,
    interval: Annotated[str, typer.Option(metavar="DURATION", help="Wait this long between two readings.")] = "2s",
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot, without a limit of lines.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show tiers, destinations, returns due, pauses, breakers and routers on the whole screen, live.

    q or Ctrl-C ends it. What cannot be read is named, and read again. Without a terminal, and with --once or --json,
    prints one snapshot, and exits 1 if something could not be read.
    """
    every = duration(interval, "--interval")
    if every < SHORTEST:
        raise SettingsError(f"--interval {interval}: use 100ms or more.")
    set_up_command_logs(logging.CRITICAL)  # a warning would be written across the screen, and the screen names it
    if once or as_json or not out.is_terminal or out.is_dumb_terminal:
        await _once(operations, as_json=as_json)
    else:
        await LiveScreen(operations, every.total_seconds()).run()


async def _once(operations: Operations, *, as_json: bool) -> None:
    seen, totals = await asyncio.gather(read_snapshot(operations), read_totals(operations))
    if as_json:
        print_json(snapshot_json(seen, totals))
    else:
        display = Display(out.width if out.is_terminal else UNLIMITED, in_ascii=_in_ascii())
        out.print(screen(seen, totals, display, seen.at))
    if seen.all_troubles:
        raise typer.Exit(1)


def _in_ascii() -> bool:
    return not out.encoding.startswith("utf")


async def read_snapshot(operations: Operations) -> TopSnapshot:
    """Everything that can be read now; all parts at the same time."""
    troubles: list[str] = []
    status, activity, pauses, breakers, destinations, stuck = await asyncio.gather(
        _part("the status", operations.status(), troubles),
        _part("what is due", operations.activity(), troubles),
        _part("the pauses", operations.show_pauses(), troubles),
        _part("the breakers", operations.list_breakers(), troubles),
        _part("the destinations", operations.destination_numbers(), troubles),
        _part("the stuck attempts", operations.list_stuck(limit=MOST_STUCK), troubles),
    )
    number = None if stuck is None else len(stuck)
    return TopSnapshot(datetime.now(UTC), status, activity, pauses, breakers, destinations, number, troubles)


async def _part(what: str, reading: Awaitable[T], troubles: list[str]) -> T | None:
    try:
        async with asyncio.timeout(READ_WITHIN):
            return await reading
    except TarryError as error:
        troubles.append(str(error))
    except TimeoutError:
        troubles.append(f"There was no answer for {what} within {READ_WITHIN:.0f} seconds.")
    return None


async def read_totals(operations: Operations) -> TopTotals:
    """Of a token that is limited to queues they are refused."""
    try:
        return TopTotals(await operations.balance(), datetime.now(UTC))
    except TarryError as error:
        return TopTotals(None, datetime.now(UTC), str(error))


@dataclass
class Keyboard:
    """Calls `press` with each key, if standard input is a terminal."""

    press: Callable[[bytes], None]
    modes: list[Any] | None = None
    """Those of the terminal before it was changed."""

    def on(self) -> bool:
        """Whether there are keys. They are read one at a time, and not shown."""
        if not sys.stdin.isatty():
            return False
        self.modes = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
        asyncio.get_running_loop().add_reader(sys.stdin, self._read)
        return True

    def off(self) -> None:
        if self.modes is not None:
            asyncio.get_running_loop().remove_reader(sys.stdin)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self.modes)

    def _read(self) -> None:
        """A terminal that is gone counts as a key."""
        try:
            self.press(os.read(sys.stdin.fileno(), 1))
        except OSError:
            self.press(b"")


@dataclass
class LiveScreen:
    """The screen of a terminal while `tarry top` runs. It is drawn every second, whatever is being read."""

    operations: Operations
    every: float
    """Seconds between two readings."""
    seen: TopSnapshot | None = None
    totals: TopTotals = field(default_factory=lambda: TopTotals(None, datetime.now(UTC)))
    stopped: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        reading = [asyncio.create_task(self._read()), asyncio.create_task(self._read_totals())]
        for task in reading:
            task.add_done_callback(lambda _: self._end())
        try:
            await self._show()
        finally:
            for task in reading:
                task.cancel()
            results = await asyncio.gather(*reading, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _show(self) -> None:
        """Until it is ended. The terminal is then as it was before."""
        keyboard, live = Keyboard(self._press), Live(console=Console(highlight=False), screen=True, auto_refresh=False)
        with self._signals(keyboard, live):
            try:
                has_keys = keyboard.on()
                live.start()
                while not self.stopped:
                    self._draw(live, has_keys=has_keys)
                    self.changed.clear()
                    await sleep_unless(self.changed, DRAW_EVERY)
            finally:
                live.stop()
                keyboard.off()

    def _draw(self, live: Live, *, has_keys: bool) -> None:
        # Rich would take COLUMNS and LINES, which some shells export, for a size that never changes.
        live.console.size = ConsoleDimensions(*os.get_terminal_size(sys.stdout.fileno()))
        display = Display(*live.console.size, self.every, _in_ascii(), has_keys)
        live.update(screen(self.seen, self.totals, display, datetime.now(UTC)), refresh=True)

    async def _read(self) -> None:
        while True:
            self.seen = await read_snapshot(self.operations)
            self.changed.set()
            await asyncio.sleep(self.every)

    async def _read_totals(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            self.totals = await read_totals(self.operations)
            self.changed.set()
            has_failed = self.totals.report is None
            await asyncio.sleep(self.every if has_failed else max(TOTALS_EVERY, TOTALS_SHARE * (clock() - began)))

    def _press(self, key: bytes) -> None:
        if key in QUIT:
            self._end()

    def _end(self) -> None:
        self.stopped = True
        self.changed.set()

    def _suspend(self, keyboard: Keyboard, live: Live) -> None:
        """Ctrl-Z: the terminal is as before until the shell continues the command."""
        live.stop()
        keyboard.off()
        os.kill(os.getpid(), signal.SIGSTOP)
        keyboard.on()
        live.start()
        self.changed.set()

    @contextmanager
    def _signals(self, keyboard: Keyboard, live: Live) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[], None]] = {
            signal.SIGINT: self._end,
            signal.SIGTERM: self._end,
            signal.SIGTSTP: partial(self._suspend, keyboard, live),
            signal.SIGWINCH: self.changed.set,
        }
        for number, handle in handlers.items():
            loop.add_signal_handler(number, handle)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)
