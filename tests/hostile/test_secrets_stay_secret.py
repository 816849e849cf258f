"""Passwords, tokens and their hashes: not in an answer, an error or a log, whatever fails."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from urllib.parse import quote

import pytest

from tarry.settings.tokens import Role, new_token
from tests.harness.waiting import wait_for
from tests.integration.router.serving import Place, Router

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


def said_by(arguments: tuple[str, ...], given: dict[str, str]) -> str:
    command = [sys.executable, "-m", "tarry", *arguments]
    done = subprocess.run(
        command, env=os.environ | given, capture_output=True, text=True, timeout=60, check=False, input=""
    )
    assert "Traceback" not in done.stderr, done.stderr[-2_000:]
    return done.stdout + done.stderr


def assert_silent(said: str) -> None:
    for secret in everything():
        assert secret not in said, f"a secret is in: {said[:500]}"


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_nothing_answers(arguments: tuple[str, ...]) -> None:
    said = said_by(arguments, environment(1, 1, 1))
    assert said
    assert_silent(said)


@pytest.mark.timeout(300)
def test_everything_answers_and_lets_nobody_in(place: Place) -> None:
    """The real services, with wrong passwords: their own words are in the errors."""
    host, _, name = place.dsn.rpartition("@")[2].partition("/")
    ports = (place.address.port, *(int(one.rpartition(":")[2]) for one in (place.address.management, host)))
    given = environment(*ports)
    given["DATABASE_URL"] = given["DATABASE_URL"].replace("/tarry?", f"/{name}?")
    for arguments in COMMANDS:
        assert_silent(said_by(arguments, given))


@pytest.mark.parametrize("setting", ["RABBITMQ_URL", "RABBITMQ_MANAGEMENT_URL", "DATABASE_URL", "API_TOKENS"])
@pytest.mark.parametrize("damage", ["no scheme", "a space", "unescaped"])
def test_a_setting_that_is_wrong_is_named_and_not_shown(setting: str, damage: str) -> None:
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


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_router_that_cannot_get_in_says_why_and_not_with_what(
    place: Place, start: Callable[..., Router], style: str
) -> None:
    given = environment(1, 1, 1) | {"TARRY_LOG": style}
    router = start(**{name: value for name, value in given.items() if name != "HTTP_PORT"})
    wait_for(lambda: "waiting for the broker" in router.log.read_text(), deadline=40, what="it to wait for a broker")
    router.kill()
    assert_silent(router.log.read_text())


def test_a_running_router_never_says_what_it_knows(place: Place, start: Callable[..., Router]) -> None:
    """Its own password, the payloads and the values of headers; also when Postgres turns it away."""
    wrong = f"postgresql://user:{quote(TAKEN['postgres'], safe='')}@{place.dsn.rpartition('@')[2]}"
    router = start(API_TOKENS=str(ENTRY), DATABASE_URL=wrong)
    wait_for(lambda: router.said("started"), deadline=30, what="it to start")
    queue = place.origin("quick.orders")
    place.request(queue, "m1", body=b"body-of-mine-4711", color="value-of-mine-4711")
    place.request("nowhere", "m2", body=b"body-of-mine-4711", color="value-of-mine-4711")
    place.take(queue, 1)
    for path in ("/healthz", "/readyz", "/metrics", "/api/v1/openapi.json", "/api/v1/status"):
        assert_silent(router.get(path)[1])
    router.stop()
    said = router.log.read_text()
    assert_silent(said)
    assert "of-mine-4711" not in said


def test_the_search_itself_would_find_one() -> None:
    with pytest.raises(AssertionError, match="a secret is in"):
        assert_silent(f"… {quote(TAKEN['amqp'], safe='')} …")
