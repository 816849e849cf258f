"""Retry now, at a terminal and through the API: what waits, what is in review, the credit check, and every refusal.

S4 (the screenshot API) needs all of it: one manual retry, a code for each refusal, and 402 from a credit check.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import psycopg
import pytest

from tarry.errors import BrokerUnreachableError, Code
from tarry.operations import cancel as divert
from tarry.operations.context import OperatorContext
from tarry.operations.retry_now import Retried, retry_now
from tarry.operations.review import jobs
from tarry.operations.review.browse import Filter
from tarry.operations.review.jobs import JobSpec
from tarry.topology.load import load
from tests.integration.operations.credits import Credits, credit_check
from tests.integration.operations.review.reviewing import REVIEW, send_to_review
from tests.integration.operations.terminal import Terminal
from tests.support.api import TOKENS, ApiInstallation, api_installation
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def bank() -> Iterator[Credits]:
    with credit_check() as made:
        yield made


@pytest.fixture(scope="module")
def api(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory, bank: Credits
) -> Iterator[ApiInstallation]:
    """The service has the credit check, and so have the commands that work without it."""
    folder = tmp_path_factory.mktemp("retry-now")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in bank.settings.items():
            environment.setenv(name, value)
        with api_installation(broker, services, folder, **TOKENS, **bank.settings) as made:
            yield made


def _name(terminal: Terminal, name: str) -> str:
    return f"{name}-{'api' if terminal.remote else 'direct'}"


def _retry_id(api: ApiInstallation, message: str) -> str:
    [item] = api.get("/retries", params={"message_id": message})["items"]
    return str(item["retry_id"])


def _in_review(api: ApiInstallation, queue: str, message: str) -> str:
    send_to_review(api.installation, queue, [message])
    return _retry_id(api, message)


def _refused(terminal: Terminal, retry: str, code: Code) -> dict[str, Any]:
    """The same code at the terminal and over HTTP, with its exit code and its status."""
    result = terminal.run("retry-now", retry, "--json")
    [report] = json.loads(result.stdout)
    assert (report["code"], result.exit_code) == (code, code.exit_code), report
    answer = terminal.api.call("POST", f"/retries/{retry}/retry")
    assert (answer.json()["code"], answer.status_code) == (code, code.status), answer.text
    assert isinstance(report["error"], str)
    return {name: value for name, value in report.items() if name not in {"id", "error", "code"}}


def _diversions(api: ApiInstallation, retry: str) -> int:
    return len([one for one in api.rows("select retry_id::text from diversion") if one == (retry,)])


def _change(api: ApiInstallation, sql: str, *values: object) -> None:
    with psycopg.connect(api.installation.dsn) as connection:
        connection.execute(sql.encode(), values)


def test_a_waiting_retry_tells_its_state_and_position(terminal: Terminal, bank: Credits) -> None:
    message, queue = _name(terminal, "waits"), _name(terminal, "slow.ahead")
    retry = terminal.api.schedule(queue, message)
    for number in range(3):
        terminal.api.installation.channel.basic_publish("", queue, f"ahead {number}".encode())
    wait_for(lambda: terminal.api.installation.depth(queue) == 3, what="three messages ahead of it")
    [answer] = terminal.json("retry-now", message, "--reason", "at once", "--requested-by", "ann")
    assert (answer["answer"], answer["previous_state"], answer["position"]) == ("retried", "scheduled", 3)
    assert (answer["state"] in {"scheduled", "returned"}, answer["round"], answer["job_id"]) == (True, 1, None)
    terminal.api.wait_state(retry, "returned")
    [asked] = bank.about(retry)
    actor = "ops/ann" if terminal.remote else "ann"
    assert asked == {
        "retry_id": retry,
        "message_id": message,
        "queue": queue,
        "policy": "slow",
        "state": "scheduled",
        "actor": actor,
        "reason": "at once",
        "authorization": "Basic dXNlcjpzZWNyZXQ=",
    }
    assert terminal.api.installation.take_ids(queue, 4)[-1] == message


def test_a_message_in_review_is_redriven_once(terminal: Terminal) -> None:
    message, queue = _name(terminal, "reviewed"), terminal.api.installation.declare(_name(terminal, "slow.reviewed"))
    retry = _in_review(terminal.api, queue, message)
    shown = terminal.run("retry-now", message)
    assert shown.exit_code == 0, shown.output
    assert "sent now; about 0 messages are ready ahead of it" in shown.stdout
    terminal.api.wait_state(retry, "returned")
    properties, _ = terminal.api.installation.wait_message(queue)
    assert (properties.message_id, (properties.headers or {})["tarry-id"]) == (message, retry)
    assert (terminal.api.installation.get(queue), terminal.api.installation.depth(REVIEW)) == (None, 0)
    told = terminal.api.get("/actions", params={"target": message, "kind": "retry_now"})["items"][0]["outcome"]
    assert (told["answer"], told["previous_state"]) == ("retried", "in_review")
    job = terminal.api.get(f"/review/jobs/{told['job_id']}")
    assert (job["kind"], job["state"], job["done"]) == ("redrive", "done", 1)
    _refused(terminal, retry, Code.ALREADY_RETURNED)


def test_the_service_finishes_what_a_command_had_to_leave(
    api: ApiInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = api.installation.declare("slow.interrupted")
    retry = _in_review(api, queue, "interrupted")
    found: list[Retried] = []

    async def connection_lost(*_: object, **__: object) -> None:
        raise BrokerUnreachableError("the connection ended")

    async def act(context: OperatorContext) -> None:
        found.append(await retry_now(context, retry, actor="ann"))

    monkeypatch.setattr("tarry.operations.retry_now.work_or_wait", connection_lost)
    _as_ann(api, act)
    assert (found[0].answer, found[0].state) == ("pending", "in_review")
    api.wait_state(retry, "returned")
    assert api.installation.wait_message(queue)[0].message_id == "interrupted"
    job = api.get(f"/review/jobs/{found[0].job_id}")
    assert (job["done"], job["unconfirmed"], api.installation.get(queue)) == (1, 0, None)


def test_of_two_retries_of_a_message_one_must_be_named(terminal: Terminal) -> None:
    message = _name(terminal, "twice")
    waiting = terminal.api.schedule(_name(terminal, "slow.one"), message)
    send_to_review(terminal.api.installation, terminal.api.installation.declare(_name(terminal, "slow.two")), [message])
    _refused(terminal, message, Code.AMBIGUOUS_ID)
    assert terminal.json("retry-now", waiting)[0]["answer"] == "retried"


def test_too_few_credits_change_nothing(terminal: Terminal) -> None:
    queue = f"slow.{_name(terminal, 'x')}.poor"
    retry = terminal.api.schedule(queue, _name(terminal, "poor"))
    assert _refused(terminal, retry, Code.INSUFFICIENT_CREDITS) == {"required": 5, "available": 2.5}
    problem = terminal.api.call("POST", f"/retries/{retry}/retry").json()
    assert (problem["required"], problem["available"]) == (5, 2.5)
    plain = terminal.run("retry-now", retry)
    assert "5 required, 2.5 available" in plain.stderr
    assert terminal.api.get(f"/retries/{retry}")["state"] == "scheduled"
    assert _diversions(terminal.api, retry) == 0
    assert terminal.json("cancel", retry)[0]["answer"] == "cancelled"  # only a retry is checked


def test_a_check_that_names_no_credits_still_refuses(terminal: Terminal) -> None:
    retry = _in_review(terminal.api, terminal.api.installation.declare("slow.mute"), _name(terminal, "mute"))
    assert _refused(terminal, retry, Code.INSUFFICIENT_CREDITS) == {"required": None, "available": None}
    assert terminal.api.get(f"/retries/{retry}")["state"] == "in_review"


@pytest.mark.parametrize("kind", ["odd", "hangs"])
def test_without_an_answer_of_the_check_nothing_is_done(terminal: Terminal, kind: str) -> None:
    retry = terminal.api.schedule(f"slow.{kind}", _name(terminal, kind))
    _refused(terminal, retry, Code.CHECK_UNAVAILABLE)
    shown = terminal.run("retry-now", retry)
    assert ("nothing was done" in shown.stderr, "secret" in shown.stderr) == (True, False)
    assert terminal.api.get(f"/retries/{retry}")["state"] == "scheduled"
    assert _diversions(terminal.api, retry) == 0


def test_what_has_ended_or_is_unknown_is_refused(terminal: Terminal) -> None:
    _refused(terminal, "nobody", Code.NOT_FOUND)
    cancelled = terminal.api.schedule("slow.ended", _name(terminal, "cancelled"))
    assert terminal.json("cancel", cancelled)[0]["answer"] == "cancelled"
    _refused(terminal, cancelled, Code.CANCELLED)
    discarded = _in_review(terminal.api, "slow.ended", _name(terminal, "discarded"))
    terminal.run("review", "discard", discarded, "--reason", "not wanted", "--yes")
    terminal.api.wait_state(discarded, "discarded")
    _refused(terminal, discarded, Code.INVALID_STATE)


def _as_ann(api: ApiInstallation, act: Callable[[OperatorContext], Coroutine[Any, Any, object]]) -> None:
    async def run() -> None:
        installation = api.installation
        async with OperatorContext.open(
            load(installation.folder), installation.address, installation.dsn, actor="ann"
        ) as context:
            await act(context)

    asyncio.run(run())


def test_what_others_process_is_refused(terminal: Terminal) -> None:
    taken = _in_review(terminal.api, terminal.api.installation.declare("slow.taken"), _name(terminal, "taken"))

    async def stopped_job(context: OperatorContext) -> None:
        job = await jobs.create(context, JobSpec("redrive", Filter(ids=(taken,))), actor="ann", here=True)
        await jobs.stop(context, job.id, actor="ann")

    _as_ann(terminal.api, stopped_job)
    _refused(terminal, taken, Code.BEING_PROCESSED)
    claimed = terminal.api.schedule("slow.claimed", _name(terminal, "claimed"))
    _change(terminal.api, "update retry set state = 'claimed' where id = %s", claimed)
    _refused(terminal, claimed, Code.BEING_PROCESSED)


def test_a_request_that_is_under_way_is_not_made_twice(terminal: Terminal) -> None:
    retry = terminal.api.schedule("slow.asked", _name(terminal, "asked"))

    async def begin(context: OperatorContext) -> None:
        await divert.ask(context, await divert.find(context, retry, "cancel"), "cancel", "ann", None)

    _as_ann(terminal.api, begin)
    _refused(terminal, retry, Code.ALREADY_REQUESTED)


def test_what_cannot_be_sent_is_refused(terminal: Terminal) -> None:
    bare = terminal.api.schedule("slow.bare", _name(terminal, "bare"))
    _change(terminal.api, "update retry set body = null where id = %s", bare)
    _refused(terminal, bare, Code.PAYLOAD_UNAVAILABLE)
    homeless = _in_review(terminal.api, _name(terminal, "slow.nowhere"), _name(terminal, "homeless"))
    _refused(terminal, homeless, Code.CANNOT_REDRIVE)
    assert terminal.api.get(f"/retries/{homeless}")["state"] == "in_review"


def test_nothing_is_sent_now_to_a_paused_destination(terminal: Terminal) -> None:
    queue = terminal.known(_name(terminal, "slow.paused"))
    waiting = terminal.api.schedule(queue, _name(terminal, "held back"))
    reviewed = _in_review(terminal.api, queue, _name(terminal, "reviewed there"))
    assert terminal.api.call("POST", f"/queues/{queue}/pause").status_code == 200
    _refused(terminal, waiting, Code.DESTINATION_PAUSED)
    _refused(terminal, reviewed, Code.DESTINATION_PAUSED)
    assert terminal.api.call("POST", f"/queues/{queue}/resume").status_code == 200
