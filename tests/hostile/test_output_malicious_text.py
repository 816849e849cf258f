"""Error texts, payloads, headers and ids that try to write to the terminal, to a browser, or to forge an answer."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator

import pika
import pytest

from tests.support.api import OPERATE, TOKENS, ApiInstallation, api_installation
from tests.support.cli import run_cli
from tests.support.router import START, routers
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

MARKUP = "[red]x[/red] [link=http://evil.example]y[/link] <script>alert(1)</script>"
EVIL = f"\x1b[2J\x1b]0;owned\x07 \u202e \x9b31m \x7f {MARKUP}\r\nerror: forged\n"
ACTED_ON = {"\x1b", "\x07", "\x9b", "\x7f", "\u202e", "\r"}
IN_REVIEW = f"review-{EVIL}"
WAITING = f"waits-{EVIL}"

VIEWS = [
    ("history", IN_REVIEW),
    ("history", WAITING),
    ("history", "--json", IN_REVIEW),
    ("review",),
    ("review", "list"),
    ("review", "list", "--json"),
    ("review", "groups", "--by", "reason"),
    ("review", "groups", "--by", "fingerprint"),
    ("review", "show", IN_REVIEW),
    ("review", "show", IN_REVIEW, "--payload"),
    ("review", "show", IN_REVIEW, "--json"),
    ("review", "check"),
    ("status",),
    ("status", "--json"),
    ("actions",),
    ("actions", "--json"),
    ("audit", "verify"),
    ("pauses",),
    ("attach", "--list"),
    ("topology", "verify"),
    ("explain", "--queue", EVIL, "--error-reason", EVIL, "--error-type", EVIL),
    ("explain", "--json", "--queue", EVIL, "--error-reason", EVIL),
    ("explain", "--peek", "manual-review.pending"),
    ("history", EVIL),
    ("pause", EVIL, "--reason", EVIL),
    ("resume", EVIL),
    ("cancel", EVIL),
    ("cancel", WAITING, "--reason", EVIL),
    ("actions",),
]


pytestmark = pytest.mark.one_series


@pytest.fixture(scope="module")
def api(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiInstallation]:
    with api_installation(broker, services, tmp_path_factory.mktemp("text"), **TOKENS) as made:
        send(made, "orders", IN_REVIEW, error_class="final")
        send(made, "slow.orders", WAITING)
        wait_for(lambda: len(made.get("/retries")["items"]) == 2, what="both to be in the store")
        yield made


def send(api: ApiInstallation, queue: str, message_id: str, **more: str) -> None:
    """All that a producer can choose is evil."""
    api.installation.declare(queue)
    said = dict.fromkeys(("error_reason", "error_type", "priority", "job_type", "color"), EVIL)
    headers = {"original_queue": queue, EVIL: EVIL, **said, **more}
    about = pika.BasicProperties(
        message_id=message_id, headers=headers, app_id=EVIL, type=EVIL, correlation_id=EVIL, content_type=EVIL
    )
    api.installation.channel.basic_publish("", "retry.scheduled", EVIL.encode(), about, mandatory=True)


@pytest.mark.parametrize("remote", [False, True], ids=["direct", "api"])
@pytest.mark.parametrize("words", VIEWS, ids=lambda words: ascii(" ".join(words))[:40])
def test_no_view_acts_on_it(api: ApiInstallation, words: tuple[str, ...], remote: bool) -> None:  # noqa: FBT001 - a parameter
    where = {"TARRY_API": api.url, "TARRY_TOKEN": OPERATE} if remote else {"TARRY_API": "", "TARRY_TOKEN": ""}
    for terminal in ({}, {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}):
        done = run_cli(words, api.installation.environment | where | terminal | {"COLUMNS": "2000"})
        said = without_own_colours(done.output) if terminal else done.output
        assert not set(said) & ACTED_ON, ascii(said)
        assert "link=http" not in said or "[link=http" in said, "markup was read"
        if "--payload" not in words:
            assert not any(line.strip().startswith("error: forged") for line in said.splitlines())


def without_own_colours(text: str) -> str:
    """What rich writes for itself: colours, nothing that moves or clears."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_history_shows_it_to_the_letter(api: ApiInstallation) -> None:
    env = api.installation.environment | {"COLUMNS": "2000", "TARRY_API": ""}
    said = run_cli(["history", IN_REVIEW], env).stdout
    assert MARKUP in said
    assert "\\x1b[2J\\x1b]0;owned\\x07 \\u202e \\x9b31m \\x7f" in said


def test_the_api_says_the_same_in_json_that_no_browser_takes_for_a_page(api: ApiInstallation) -> None:
    found = api.get("/retries", params={"state": "in_review"})["items"][0]
    for path in (
        "/retries",
        f"/retries/{found['retry_id']}",
        f"/retries/{found['retry_id']}/payload",
        "/review/messages",
        "/actions",
    ):
        answer = api.call("GET", path)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("application/json")
        assert answer.headers["x-content-type-options"] == "nosniff"
        json.loads(answer.text)
    assert found["message_id"] == IN_REVIEW
    lost = api.call("GET", "/retries/%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert lost.status_code in (400, 404, 422)
    assert "json" in lost.headers["content-type"]
    for path in ("/healthz", "/readyz", "/metrics", "/nothing<script>"):
        answer = api.client.get(path)
        assert "html" not in answer.headers["content-type"]


@pytest.mark.parametrize("style", ["json", "console"])
def test_the_log_is_as_harmless(api: ApiInstallation, style: str) -> None:
    with routers(api.installation) as start:
        router = api.router if style == "json" else start(TARRY_LOG=style)
        numbers = itertools.count()

        def took_one() -> bool:
            """Two routers share them: which one gets the first is not known."""
            send(api, "orders", f"{next(numbers)}-{style}-{EVIL}", error_class="final")
            return f"-{style}-" in router.log.read_text(encoding="utf-8")

        wait_for(took_one, deadline=START, what="it to take one")
        if style == "console":
            router.stop()
        said = without_own_colours(router.log.read_text(encoding="utf-8"))
    assert not set(said) & ACTED_ON
    assert "\nerror: forged" not in said
