"""`tarry top` on a terminal of its own, and without one; on broker and Postgres, and through the API."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.operations.terminal import Terminal
from tests.support.api import OPERATE, ApiInstallation
from tests.support.cli import TARRY, run_process
from tests.support.proxy import Proxy
from tests.support.pseudo_terminal import ENTER_SCREEN, PseudoTerminal
from tests.support.spaces import with_port
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series

NO_POSTGRES = "Postgres does not answer"
NO_BROKER = "No answer from the management API"
Start = Callable[..., PseudoTerminal]


@pytest.fixture
def busy(api: ApiInstallation) -> ApiInstallation:
    """A retry waits in a tier, and the broker's statistics show it."""
    if not api.rows("select 1 from retry where queue = 'slow.top' and state = 'scheduled'"):
        api.schedule("slow.top", "top")
    wait_for(lambda: [one for one in api.get("/status")["tiers"] if one["depth"]], deadline=60, what="a depth")
    return api


@pytest.fixture
def start(busy: ApiInstallation) -> Iterator[Start]:
    """Starts `tarry top` on a terminal; the settings are added to those of the installation."""
    started: list[PseudoTerminal] = []

    def run(*options: str, rows: int = 24, columns: int = 80, **settings: str) -> PseudoTerminal:
        environment = busy.installation.environment | settings
        started.append(PseudoTerminal([*TARRY, "top", *options], environment, rows=rows, columns=columns))
        return started[-1]

    yield run
    for one in started:
        one.__exit__(None, None, None)


def test_top_prints_one_snapshot_as_json(busy: ApiInstallation, terminal: Terminal) -> None:
    found = terminal.json("top")
    assert (found["troubles"], found["audit"]["balance"]["lost"], len(found["activity"]["due"])) == ([], 0, 60)
    assert "slow.top" in [one["name"] for one in found["destinations"]]
    assert [one for one in found["status"]["tiers"] if one["depth"]]
    assert found["verdict"]["level"] in {"ok", "attention", "wrong"}


def test_top_prints_one_plain_snapshot_without_a_terminal(busy: ApiInstallation, terminal: Terminal) -> None:
    shown = terminal.run("top")
    assert (shown.exit_code, "\x1b" in shown.stdout) == (0, False)
    for part in ("TIERS", "DESTINATIONS", "slow.top", "ROUTERS", "audit: lost 0 of"):
        assert part in shown.stdout, shown.stdout


def test_top_exits_1_and_shows_the_rest_if_something_cannot_be_read(busy: ApiInstallation) -> None:
    nowhere = busy.installation.environment | {"DATABASE_URL": "postgresql://postgres@127.0.0.1:1/tarry"}
    done = run_process(["top", "--json"], nowhere)
    found = json.loads(done.stdout)
    assert (done.returncode, found["audit"], done.stderr) == (1, None, "")
    assert any(NO_POSTGRES in one for one in found["troubles"])
    assert [one for one in found["status"]["tiers"] if one["depth"]]


def test_top_refuses_an_interval_that_is_too_short(terminal: Terminal) -> None:
    refused = terminal.run("top", "--interval", "1ms")
    assert (refused.exit_code, "--interval 1ms: use 100ms or more" in refused.stderr) == (2, True)


def test_top_fits_the_terminal_follows_its_size_and_ends_with_q(start: Start, terminal: Terminal) -> None:
    where = {"TARRY_API": terminal.api.url, "TARRY_TOKEN": OPERATE} if terminal.remote else {}
    # Some shells export a size that does not change.
    screen = start("--interval", "500ms", COLUMNS="80", LINES="24", **where)
    for rows, columns in ((24, 80), (40, 140), (12, 40)):
        screen.resize(rows, columns)
        shown = wait_size(screen, rows, columns)
        assert max(map(len, shown)) == columns, shown
    screen.type("q")
    assert (screen.wait_exit(), ENTER_SCREEN in screen.text, screen.is_restored) == (0, True, True)


def wait_size(screen: PseudoTerminal, rows: int, columns: int) -> list[str]:
    """A complete screen of this size; its first line is as long as the terminal is wide."""

    def found() -> list[str]:
        shown = screen.screen
        return shown if (len(shown), len(shown[0])) == (rows, columns) and "audit: lost" in "\n".join(shown) else []

    return wait_for(found, deadline=120, what=f"a screen of {columns}x{rows}")


def test_top_leaves_the_terminal_as_it_was_after_ctrl_c(start: Start) -> None:
    screen = start()
    screen.wait_screen("TIERS")
    screen.type("\x03")
    assert (screen.wait_exit(), screen.is_restored, "Traceback" in screen.text) == (0, True, False)


def test_top_gives_the_terminal_back_while_it_is_suspended(start: Start) -> None:
    screen = start()
    screen.wait_screen("TIERS")
    screen.type("\x1a")
    wait_for(lambda: is_stopped(screen.process.pid), deadline=120, what="ctrl-Z to stop it")
    wait_for(lambda: screen.is_restored, what="the terminal to be as before")
    seen = len(screen.text)
    os.kill(screen.process.pid, signal.SIGCONT)
    wait_for(lambda: "TIERS" in screen.text[seen:], deadline=120, what="the screen to be back")
    screen.type("q")
    assert (screen.wait_exit(), screen.is_restored) == (0, True)


def is_stopped(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text("ascii").rpartition(")")[2].split()[0] == "T"


def test_top_goes_on_through_outages_of_postgres_and_the_broker(
    busy: ApiInstallation, start: Start, proxy: Callable[[str], Proxy]
) -> None:
    installation = busy.installation
    postgres, broker = proxy(installation.dsn), proxy(installation.management_url)
    screen = start(
        "--interval",
        "200ms",
        columns=200,
        DATABASE_URL=with_port(installation.dsn, postgres.port),
        RABBITMQ_MANAGEMENT_URL=with_port(installation.management_url, broker.port),
    )
    screen.wait_screen("DESTINATIONS", without=NO_POSTGRES)
    for wire, outage, still in ((postgres, NO_POSTGRES, "retry.delay"), (broker, NO_BROKER, "slow.top")):
        wire.refuse()
        wire.cut()
        shown = "\n".join(screen.wait_screen(outage))
        assert still in shown, shown
        wire.heal()
        screen.wait_screen("DESTINATIONS", without=outage)
    screen.type("q")
    assert (screen.wait_exit(), screen.is_restored, "warning" in screen.plain) == (0, True, False)
