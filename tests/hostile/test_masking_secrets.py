"""Passwords, tokens and their hashes: not in an answer, an error or a log, whatever fails."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from urllib.parse import quote

import pytest

from tarry.settings.tokens import Role, new_token
from tarry.store.database import PostgresPool
from tests.support.cli import run_cli, run_process
from tests.support.installation import Installation
from tests.support.router import START, Router
from tests.support.waiting import wait_for

TAKEN = {secret: secrets.token_urlsafe(12) + "/@:%" for secret in ("amqp", "web", "postgres")}
"""With what has to be escaped in an address: a half-escaped password is one that shows."""
TOKEN, ENTRY = new_token("ann", Role("operate"))

COMMANDS = [
    ("config",),
    ("config", "--json"),
    ("topology", "verify"),
    ("topology", "plan"),
    ("topology", "apply"),
    ("attach", "orders"),
    ("detach", "orders"),
    ("attach", "--list"),
    ("status",),
    ("status", "--json"),
    ("history", "m1"),
    ("audit", "verify"),
    ("audit", "recover"),
    ("audit", "migrate"),
    ("review",),
    ("review", "list"),
    ("review", "check"),
    ("pause", "orders"),
    ("resume", "orders"),
    ("cancel", "m1"),
    ("retry-now", "m1"),
    ("actions",),
    ("explain", "--peek", "orders"),
]
PROCESSES = [("topology", "verify"), ("review", "list")]
"""One that talks to the broker, and one that talks to Postgres through a pool: as processes too, with hooks and logs of
their own."""

Said = Callable[[tuple[str, ...], dict[str, str]], str]


def forms(secret: str) -> set[str]:
    """As it is, and as addresses, reprs and shells write it."""
    return {secret, quote(secret, safe=""), quote(secret), repr(secret)[1:-1]}


def everything() -> set[str]:
    found = {TOKEN, ENTRY.digest}
    for secret in TAKEN.values():
        found |= forms(secret)
    return found


def environment(port: int, web: int, postgres: int) -> dict[str, str]:
    escaped = {name: quote(secret, safe="") for name, secret in TAKEN.items()}
    return {
        "RABBITMQ_URL": f"amqp://user:{escaped['amqp']}@127.0.0.1:{port}/shop",
        "RABBITMQ_MANAGEMENT_URL": f"http://user:{escaped['web']}@127.0.0.1:{web}",
        "DATABASE_URL": f"postgresql://user:{escaped['postgres']}@127.0.0.1:{postgres}/tarry?connect_timeout=2",
        "API_TOKENS": str(ENTRY),
        "HTTP_PORT": "0",
    }


@pytest.fixture
def said_by(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Said:
    """What a command says, and what it logs: a process writes warnings to stderr, where nobody handles them."""
    # Commands try for three seconds to get into Postgres; the processes below do so too.
    defaults = PostgresPool.__init__.__kwdefaults__
    assert defaults
    assert "patience" in defaults
    monkeypatch.setitem(defaults, "patience", 0.3)

    def said(arguments: tuple[str, ...], given: dict[str, str]) -> str:
        caplog.clear()
        return run_cli(arguments, given).output + caplog.text

    return said


def said_by_a_process(arguments: tuple[str, ...], given: dict[str, str]) -> str:
    done = run_process(arguments, given)
    assert "Traceback" not in done.stderr, done.stderr[-2_000:]
    return done.stdout + done.stderr


def assert_silent(said: str) -> None:
    for secret in everything():
        assert secret not in said, f"a secret is in: {said[:500]}"


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_nothing_answers(arguments: tuple[str, ...], said_by: Said) -> None:
    said = said_by(arguments, environment(1, 1, 1))
    assert said
    assert_silent(said)


@pytest.mark.parametrize("arguments", PROCESSES, ids=" ".join)
def test_nothing_answers_a_process(arguments: tuple[str, ...]) -> None:
    said = said_by_a_process(arguments, environment(1, 1, 1))
    assert said
    assert_silent(said)


@pytest.mark.timeout(300)
def test_everything_answers_and_lets_nobody_in(installation: Installation, said_by: Said) -> None:
    """The real services, with wrong passwords: their own words are in the errors."""
    host, _, name = installation.dsn.rpartition("@")[2].partition("/")
    ports = (
        installation.address.port,
        *(int(one.rpartition(":")[2]) for one in (installation.address.management, host)),
    )
    given = environment(*ports)
    given["DATABASE_URL"] = given["DATABASE_URL"].replace("/tarry?", f"/{name}?")
    for arguments in COMMANDS:
        assert_silent(said_by(arguments, given))
    for arguments in PROCESSES:
        assert_silent(said_by_a_process(arguments, given))


@pytest.mark.parametrize("setting", ["RABBITMQ_URL", "RABBITMQ_MANAGEMENT_URL", "DATABASE_URL", "API_TOKENS"])
@pytest.mark.parametrize("damage", ["no scheme", "a space", "unescaped"])
def test_a_setting_that_is_wrong_is_named_and_not_shown(setting: str, damage: str, said_by: Said) -> None:
    given = environment(1, 1, 1)
    whole = given[setting]
    if damage == "no scheme":
        given[setting] = whole.partition("://")[2] or whole.partition(":")[2]
    elif damage == "a space":
        given[setting] = whole.replace("127.0.0.1", "127.0. 0.1").replace("operate", "oper ate")
    else:
        given[setting] = whole.replace("%2F", "/").replace("%40", "@").replace("%3A", ":").replace("%25", "%")
    for command in (("config",), ("config", "--json"), ("status",), ("serve", "--help")):
        assert_silent(said_by(command, given))


def test_a_router_that_cannot_get_in_says_why_and_not_with_what(
    installation: Installation, start: Callable[..., Router]
) -> None:
    started = [start(**environment(1, 1, 1), TARRY_LOG=style) for style in ("json", "console")]

    def all_wait() -> bool:
        return all("waiting for the broker" in router.log.read_text() for router in started)

    wait_for(all_wait, deadline=START, what="both to wait for a broker")
    for router in started:
        router.kill()
        assert_silent(router.log.read_text())


def test_a_running_router_never_says_what_it_knows(installation: Installation, start: Callable[..., Router]) -> None:
    """Its own password, the payloads and the values of headers; also when Postgres turns it away."""
    wrong = f"postgresql://user:{quote(TAKEN['postgres'], safe='')}@{installation.dsn.rpartition('@')[2]}"
    router = start(API_TOKENS=str(ENTRY), DATABASE_URL=wrong)
    wait_for(lambda: router.logged("started"), deadline=START, what="it to start")
    queue = installation.declare("quick.orders")
    installation.request(queue, "m1", body=b"body-of-mine-4711", color="value-of-mine-4711")
    installation.request("nowhere", "m2", body=b"body-of-mine-4711", color="value-of-mine-4711")
    installation.take_ids(queue, 1)
    for path in ("/healthz", "/readyz", "/metrics", "/api/v1/openapi.json", "/api/v1/status"):
        assert_silent(router.get(path)[1])
    router.stop()
    said = router.log.read_text()
    assert_silent(said)
    assert "of-mine-4711" not in said


def test_the_search_itself_would_find_one() -> None:
    with pytest.raises(AssertionError, match="a secret is in"):
        assert_silent(f"… {quote(TAKEN['amqp'], safe='')} …")
