"""Queues with names that were chosen to do harm: everything works on them, or says in a line why it does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from typer.testing import Result

from tarry.core.printable import printable
from tests.support.api import OPERATE, TOKENS, ApiInstallation, api_installation
from tests.support.cli import run_cli
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

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
OWN_KIND = "~to:orders"
"""As a routing key it is tarry's own."""
LINE_ENDS = ["retry.\nscheduled", "ret\nry.audit", "\rretry.audit", "manual-review\n.pending"]
HARD_IN_A_PATH = [
    "../../etc/passwd",
    "..",
    "a/b?c=d&e#f",
    "100%25%2F%",
    "\x1b[2J\x1b]0;owned\x07",
    "名前🐇\u0301",
    "~to:orders",
]
ACTED_ON = {"\x1b", "\x07", "\x9b", "\x7f", "\u202e", "\u2066"}
"""What a terminal does something at, and must not get."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def api(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiInstallation]:
    """With a message that returns and one in review for every name; they are sent at once and wait side by side.

    All that is sent is sent here: a connection that nobody uses for some minutes is closed by the broker.
    """
    with api_installation(broker, services, tmp_path_factory.mktemp("names"), **TOKENS) as made:
        for name in NAMES:
            made.installation.declare(name)
            if name != OWN_KIND:
                made.installation.request(name, f"r-{serial_of(name)}", error_class="final")
            made.installation.request(name, serial_of(name))
        for name in LINE_ENDS:
            made.installation.request(name, f"line-end-{LINE_ENDS.index(name)}")
        in_review = len(NAMES) + len(LINE_ENDS)
        wait_for(
            lambda: made.installation.depth("manual-review.pending") == in_review,
            deadline=120,
            what=f"{in_review} in review",
        )
        yield made


def serial_of(name: str) -> str:
    return f"m-{NAMES.index(name)}"


def tarry(api: ApiInstallation, *words: str, remote: bool = False) -> Result:
    where = {"TARRY_API": api.url, "TARRY_TOKEN": OPERATE} if remote else {"TARRY_API": "", "TARRY_TOKEN": ""}
    done = run_cli(words, api.installation.environment | where | {"COLUMNS": "400"})
    assert not set(done.output) & ACTED_ON, f"{words} wrote to the terminal: {done.output!r}"
    return done


def has_control(name: str) -> bool:
    """The API refuses to look for such names, and says so."""
    return any(ord(one) < 0x20 or one == "\x7f" for one in name)


@pytest.mark.parametrize("name", [name for name in NAMES if name != OWN_KIND])
def test_a_message_returns_and_every_view_shows_it(api: ApiInstallation, name: str) -> None:
    serial = serial_of(name)
    assert api.installation.take_ids(name, 1) == [serial]
    wait_for(
        lambda: [one["state"] for one in api.get("/retries", params={"message_id": serial})["items"]] == ["returned"]
    )
    assert api.get("/retries", params={"message_id": serial})["items"][0]["queue"] == name
    asked = api.call("GET", "/retries", params={"queue": name})
    assert asked.status_code == (422 if has_control(name) else 200)
    assert tarry(api, "history", serial).exit_code == 0
    assert json.loads(tarry(api, "history", serial, "--json").stdout)[0]["queue"] == name
    wait_for(lambda: api.get("/retries", params={"message_id": f"r-{serial}"})["items"], what="it to be in review")
    for remote in (False,) if has_control(name) else (False, True):
        assert tarry(api, "review", "list", f"--queue={name}", remote=remote).exit_code == 0
        shown = tarry(api, "review", "list", f"--queue={name}", "--json", remote=remote)
        assert [one["queue"] for one in json.loads(shown.stdout)["items"]] == [name]
        assert tarry(api, "review", "show", f"r-{serial}", "--payload", remote=remote).exit_code == 0


@pytest.mark.parametrize("remote", [False, True], ids=["direct", "api"])
@pytest.mark.parametrize("words", ["status", "status --json", "review groups --by queue"])
def test_views_of_all_queues_show_every_name(api: ApiInstallation, words: str, remote: bool) -> None:  # noqa: FBT001 - a parameter
    assert tarry(api, *words.split(), remote=remote).exit_code == 0


@pytest.mark.parametrize(
    ("name", "remote"), [*((name, False) for name in NAMES), *((name, True) for name in HARD_IN_A_PATH)]
)
def test_it_can_be_paused_and_resumed_or_the_reason_is_told(api: ApiInstallation, name: str, remote: bool) -> None:  # noqa: FBT001 - a parameter
    for command in ("pause", "resume"):
        done = (
            tarry(api, command, "--reason=x", "--", name, remote=remote)
            if command == "pause"
            else tarry(api, command, "--", name, remote=remote)
        )
        if done.exit_code:
            assert done.stderr.startswith("error: "), done.output
            assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("remote", [False, True], ids=["direct", "api"])
def test_the_actions_on_all_of_them_are_listed(api: ApiInstallation, remote: bool) -> None:  # noqa: FBT001 - a parameter
    assert tarry(api, "actions", remote=remote).exit_code == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_api_answers_in_json_whatever_the_path_says(api: ApiInstallation, name: str) -> None:
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
        answer = api.call(method, where, json={} if method == "POST" else None)
        assert answer.status_code < 500, answer.text
        assert "json" in answer.headers["content-type"], where
        answer.json()
        if answer.request.url.path.startswith("/api/"):
            assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", NAMES)
def test_an_attachment_is_planned_or_the_reason_is_told(api: ApiInstallation, name: str) -> None:
    done = tarry(api, "attach", "--dry-run", "--", name)
    assert done.exit_code == (1 if name == OWN_KIND else 0), done.output
    told = "why: its name begins with '~'" if name == OWN_KIND else f"queue {printable(name)}: would be attached"
    assert told in done.output


def test_all_are_attached_and_detached_or_the_reason_is_told(
    api: ApiInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one go: each attachment is proven first, and each detaching waits for the broker's figures."""
    monkeypatch.setattr("tarry.attach.detach.SETTLING_SECONDS", 0.1)
    done = tarry(api, "attach", "--", *NAMES)
    assert done.exit_code == 1, "one of them is refused"
    assert "why: its name begins with '~'" in done.output
    for name in NAMES:
        assert f"queue {printable(name)}: {'refused' if name == OWN_KIND else 'attached'}" in done.output
    again = json.loads(tarry(api, "attach", "--json", "--", *NAMES).stdout)
    assert {one["name"]: one["status"] for one in again} == {
        name: "refused" if name == OWN_KIND else "unchanged" for name in NAMES
    }
    done = tarry(api, "detach", "--", *NAMES)
    assert done.exit_code == (1 if "kept: " in done.output else 0), done.output
    for name in NAMES:
        assert f"queue {printable(name)}: {'was not attached' if name == OWN_KIND else 'detached'}" in done.output


def in_review(api: ApiInstallation, words: str) -> list[str]:
    """The reasons with these words in them."""
    items = api.get("/review/messages", params={"limit": 200})["items"]
    return [one["reason"] for one in items if words in str(one["reason"])]


def test_a_line_end_is_no_way_around_the_names_of_tarrys_own(api: ApiInstallation) -> None:
    """The broker takes line ends out of a name before it binds it: such a one would lead into a queue of ours."""
    # They name no queue, so the store has nothing but their reason.
    wait_for(lambda: len(in_review(api, "cannot be the name")) == len(LINE_ENDS), what="all of them in review")
    bound = {one["destination"] for one in api.installation.api("bindings/{vhost}") if one["source"] == "retry.deliver"}
    assert not {"retry.audit", "retry.scheduled", "manual-review.pending"} & bound


def test_nothing_of_it_reached_the_database_as_sql(api: ApiInstallation) -> None:
    assert api.rows("select count(*) from retry")[0][0] >= 0


def test_a_name_of_tarrys_own_kind_goes_to_review(api: ApiInstallation) -> None:
    assert wait_for(lambda: in_review(api, "reserved for tarry"))


def test_the_log_of_all_this_is_json_and_harmless(api: ApiInstallation) -> None:
    text = Path(api.router.log).read_text(encoding="utf-8")
    assert not set(text) & ACTED_ON
    assert api.router.lines()
    assert api.router.process.poll() is None
