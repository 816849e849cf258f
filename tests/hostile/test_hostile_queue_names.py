"""Queues with names that were chosen to do harm: everything works on them, or says in a line why it does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from typer.testing import CliRunner, Result

from tarry.cli.main import app
from tests.harness.services import Services
from tests.harness.spaces import SharedBroker
from tests.harness.waiting import wait_for
from tests.integration.api.calling import OPERATE, TOKENS, Installation, installation

NAMES = [
    "../../etc/passwd",
    "..",
    ".",
    "a/b?c=d&e#f",
    "'; DROP TABLE retry; --",
    '"; DROP TABLE retry; --',
    "100%25%2F%",
    "a b\tc",
    "\x1b[2J\x1b]0;owned\x07",
    "\u202eevil\u2066",
    "del\x7f c1\x9b31m",
    "名前🐇\u0301",
    "q" * 255,
    "é" * 127,
    "-rf",
    "--help",
    "$(reboot)`reboot`",
    "%s%n{0}{vhost}",
    "[red]red[/red]",
    "<script>alert(1)</script>",
    "null",
    'a\\b"c',
    "~to:orders",
]
ACTED_ON = {"\x1b", "\x07", "\x9b", "\x7f", "\u202e", "\u2066"}
"""What a terminal does something at, and must not get."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def there(broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(broker, services, tmp_path_factory.mktemp("names"), **TOKENS) as made:
        yield made


def tarry(there: Installation, *words: str, api: bool = False) -> Result:
    where = {"TARRY_API": there.url, "TARRY_TOKEN": OPERATE} if api else {"TARRY_API": "", "TARRY_TOKEN": ""}
    done = CliRunner().invoke(app, words, env=there.place.environment | where | {"COLUMNS": "400"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert not set(done.output) & ACTED_ON, f"{words} wrote to the terminal: {done.output!r}"
    return done


def has_control(name: str) -> bool:
    """The API refuses to look for such names, and says so."""
    return any(ord(one) < 0x20 or one == "\x7f" for one in name)


def returned(there: Installation, name: str, serial: str) -> str:
    place = there.place
    place.request(place.origin(name), serial)
    assert place.take(name, 1) == [serial]
    return serial


@pytest.mark.parametrize("name", NAMES)
def test_a_message_returns_and_every_view_shows_it(there: Installation, name: str) -> None:
    if name.startswith("~"):
        pytest.skip("as a routing key it is tarry's own; see below")
    serial = returned(there, name, f"m-{NAMES.index(name)}")
    wait_for(lambda: there.get("/retries", params={"message_id": serial})["items"][0]["state"] == "returned")
    assert there.get("/retries", params={"message_id": serial})["items"][0]["queue"] == name
    asked = there.call("GET", "/retries", params={"queue": name})
    assert asked.status_code == (422 if has_control(name) else 200)
    for words in (("history", serial), ("history", serial, "--json"), ("status",), ("status", "--json")):
        assert tarry(there, *words).exit_code == 0
    assert json.loads(tarry(there, "history", serial, "--json").stdout)[0]["queue"] == name
    place = there.place
    place.request(name, f"r-{serial}", error_class="final")
    wait_for(lambda: tarry(there, "review", "show", f"r-{serial}").exit_code == 0, what="it to be in review")
    for api in (False,) if has_control(name) else (False, True):
        assert tarry(there, "review", "list", f"--queue={name}", api=api).exit_code == 0
        shown = tarry(there, "review", "list", f"--queue={name}", "--json", api=api)
        assert [one["queue"] for one in json.loads(shown.stdout)["items"]] == [name]
        assert tarry(there, "review", "groups", "--by", "queue", api=api).exit_code == 0
        assert tarry(there, "review", "show", f"r-{serial}", "--payload", api=api).exit_code == 0


@pytest.mark.parametrize("api", [False, True], ids=["direct", "api"])
@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_paused_and_resumed_or_the_reason_is_told(there: Installation, name: str, api: bool) -> None:  # noqa: FBT001 - a parameter
    there.place.origin(name)
    for command in ("pause", "resume"):
        done = (
            tarry(there, command, "--reason=x", "--", name, api=api)
            if command == "pause"
            else tarry(there, command, "--", name, api=api)
        )
        if done.exit_code:
            assert done.stderr.startswith("error: "), done.output
            assert len(done.stderr.splitlines()) == 1
    assert tarry(there, "actions", api=api).exit_code == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_api_answers_in_json_whatever_the_path_says(there: Installation, name: str) -> None:
    path = quote(name, safe="")
    for method, where in (
        ("GET", f"/retries/{path}"),
        ("GET", f"/retries/{path}/payload"),
        ("GET", f"/retries?queue={path}"),
        ("GET", f"/review?queue={path}"),
        ("GET", f"/{path}"),
        ("POST", f"/queues/{path}/pause"),
        ("POST", f"/queues/{path}/resume"),
    ):
        answer = there.call(method, where, json={} if method == "POST" else None)
        assert answer.status_code < 500, answer.text
        assert "json" in answer.headers["content-type"], where
        answer.json()
        if answer.request.url.path.startswith("/api/"):
            assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", NAMES)
def test_it_is_attached_and_detached_or_the_reason_is_told(there: Installation, name: str) -> None:
    there.place.origin(name)
    for command in ("attach", "detach"):
        done = tarry(there, command, "--", name)
        if done.exit_code:
            assert any(words in done.output for words in ("error: ", "why: ", "kept: ")), done.output


@pytest.mark.parametrize("name", ["retry.\nscheduled", "ret\nry.audit", "\rretry.audit", "manual-review\n.pending"])
def test_a_line_end_is_no_way_around_the_names_of_tarrys_own(there: Installation, name: str) -> None:
    """The broker takes line ends out of a name before it binds it: this one would lead into a queue of ours."""
    place = there.place
    serial = f"line-end-{name.encode().hex()}"
    place.request(name, serial)

    # It names no queue, so the books know it by nothing but its reason.
    wait_for(lambda: any("cannot be the name" in str(one["reason"]) for one in there.get("/review/messages")["items"]))
    bound = {one["destination"] for one in place.api("bindings/{vhost}") if one["source"] == "retry.deliver"}
    assert not {"retry.audit", "retry.scheduled", "manual-review.pending"} & bound


def test_nothing_of_it_reached_the_database_as_sql(there: Installation) -> None:
    assert there.rows("select count(*) from retry")[0][0] >= 0


def test_a_name_of_tarrys_own_kind_goes_to_review(there: Installation) -> None:
    place = there.place
    place.request(place.origin("~to:orders"), "own-kind")
    reasons = wait_for(
        lambda: [
            one["reason"]
            for one in there.get("/review/messages")["items"]
            if "reserved for tarry" in str(one["reason"])
        ]
    )
    assert reasons


def test_the_log_of_all_this_is_json_and_harmless(there: Installation) -> None:
    text = Path(there.router.log).read_text(encoding="utf-8")
    assert not set(text) & ACTED_ON
    assert there.router.lines()
    assert there.router.process.poll() is None
