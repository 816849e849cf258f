"""Reading the stream: `tarry events`, and GET /api/v1/events as server-sent events."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator, Iterator
from typing import Any

import httpx
import psycopg
import pytest

from tarry.settings.tokens import Role, new_token
from tests.support.api import TOKENS, ApiInstallation, api_installation
from tests.support.cli import TARRY, run_cli
from tests.support.events import WITH_EVENTS
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

SCOPED, SCOPED_ENTRY = new_token("team", Role.LOOK, ["mine.*"])
RETRY = (
    "insert into retry (id, message_id, queue, policy, state, round) values (gen_random_uuid(), %s, %s, 'quick', %s, 1)"
)
STEP = "insert into transition (retry_id, round, state, actor) select id, 1, %s, 'x' from retry where message_id = %s"
FIRST = [("one", "mine.a", "scheduled"), ("two", "theirs", "scheduled"), ("three", "mine.b", "skipped")]


@pytest.fixture(scope="module")
def api(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiInstallation]:
    """With three events, of retries that exist in the store only."""
    folder = tmp_path_factory.mktemp("events")
    (folder / "topology").mkdir()
    (folder / "topology" / "tarry.toml").write_text(WITH_EVENTS, encoding="utf-8")
    tokens = TOKENS | {"API_TOKENS": f"{TOKENS['API_TOKENS']}, {SCOPED_ENTRY}"}
    with api_installation(broker, services, folder, **tokens) as made:
        wait_for(lambda: made.rows("select from event_position"), deadline=120, what="a position")
        for step in FIRST:
            add(made, *step)
        wait_for(
            lambda: made.installation.number("select published from event_position") == len(FIRST),
            deadline=120,
            what="events",
        )
        yield made


def add(api: ApiInstallation, message: str, queue: str, state: str) -> None:
    with psycopg.connect(api.installation.dsn, autocommit=True) as connection:
        connection.execute(RETRY.encode(), [message, queue, state])
        connection.execute(STEP.encode(), [state, message])


def listed(api: ApiInstallation, *arguments: str, remote: bool) -> list[str]:
    """The message ids of the events that `tarry events` prints."""
    where = ["--api", api.url, "--token", str(api.token)] if remote else []
    done = run_cli(["events", "--json", *arguments, *where], api.installation.environment)
    assert done.exit_code == 0, done.output
    return [json.loads(line)["data"]["message_id"] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("remote", [False, True], ids=["local", "api"])
def test_the_command_lists_what_the_stream_keeps_and_ends(api: ApiInstallation, remote: bool) -> None:  # noqa: FBT001
    assert listed(api, remote=remote)[:3] == ["one", "two", "three"]
    assert listed(api, "--queue", "mine.*", remote=remote)[:2] == ["one", "three"]
    assert listed(api, "--state", "skipped", remote=remote) == ["three"]
    assert listed(api, "--since", "1h", "--queue", "theirs", remote=remote) == ["two"]
    assert listed(api, "--since", "2100-01-01T00:00", remote=remote) == []


def test_the_command_prints_a_line_for_each_event(api: ApiInstallation) -> None:
    lines = run_cli(["events", "--queue", "theirs"], api.installation.environment).stdout.splitlines()
    assert [line.split()[2:5] for line in lines] == [["scheduled", "theirs", "two"]]


def test_following_shows_new_events_until_interrupted(api: ApiInstallation) -> None:
    command = [*TARRY, "events", "--follow", "--since", "1h", "--json", "--state", "in_review"]
    with subprocess.Popen(command, env=environment(api), stdout=subprocess.PIPE, text=True) as process:
        try:
            add(api, "later", "other", "in_review")
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["data"]["message_id"] == "later"
        finally:
            process.terminate()


def environment(api: ApiInstallation) -> dict[str, str]:
    return os.environ | api.installation.environment


def stream(
    api: ApiInstallation, token: str | None = None, last: str | None = None, **params: Any
) -> Generator[dict[str, Any], None, None]:
    """The events of a request, each with its id."""
    headers = {"Authorization": f"Bearer {token or api.token}"} | ({"Last-Event-ID": last} if last else {})
    with httpx.stream("GET", f"{api.url}/api/v1/events", params=params, headers=headers, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        id_ = ""
        for line in answer.iter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                id_ = value
            elif name == "data":
                yield {"offset": id_, **json.loads(value)}


def test_server_sent_events_go_on_after_the_last_id(api: ApiInstallation) -> None:
    found = [one for one in stream(api, follow="false") if one["data"]["message_id"] in {"one", "two", "three"}]
    assert [one["data"]["message_id"] for one in found] == ["one", "two", "three"]
    rest = [one["data"]["message_id"] for one in stream(api, last=found[1]["offset"], follow="false")]
    assert rest[0] == "three"


def test_server_sent_events_follow(api: ApiInstallation) -> None:
    following = stream(api, since="1h", state="in_review", queue="last")
    add(api, "last", "last", "in_review")
    assert next(following)["data"]["message_id"] == "last"
    following.close()


def test_a_limited_token_sees_the_events_of_its_queues(api: ApiInstallation) -> None:
    found = {one["data"]["message_id"] for one in stream(api, SCOPED, follow="false")}
    assert found == {"one", "three"}


def test_a_state_that_does_not_exist_is_refused_with_the_nearest(api: ApiInstallation) -> None:
    done = run_cli(["events", "--state", "exausted"], api.installation.environment)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--state: `exausted` is no type of event; did you mean `exhausted`?" in done.stderr
    answer = api.call("GET", "/events", params={"state": "exausted", "follow": "false"})
    assert (answer.status_code, "did you mean `exhausted`?" in answer.text) == (422, True)


def test_wrong_parameters_and_tokens_are_problems(api: ApiInstallation) -> None:
    assert api.call("GET", "/events", params={"since": "soon"}).status_code == 422
    assert api.call("GET", "/events", params={"stat": "x"}).status_code == 422
    assert httpx.get(f"{api.url}/api/v1/events", timeout=30).status_code == 401
