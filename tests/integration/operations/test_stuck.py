"""Stuck attempts at a terminal, straight or through the API: listed, recovered once, or refused with the remedy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pika
import psycopg
import pytest

from tarry.errors import BrokerUnreachableError
from tarry.operations import stuck
from tarry.operations.context import OperatorContext
from tarry.operations.intake import pause_intake, resume_intake
from tarry.operations.pause import pause, resume
from tarry.operations.stuck import StuckRecovery, Wanted
from tests.integration.operations.operators import Operator
from tests.integration.operations.terminal import Terminal
from tests.support.api import TOKENS, ApiInstallation, api_installation
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series

REVIEW = "manual-review.pending"


@pytest.fixture(scope="module")
def api(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiInstallation]:
    """Nothing is recovered automatically: 0 switches that off."""
    settings = TOKENS | {"TARRY_RECOVER_STUCK_EVERY": "0"}
    with api_installation(broker, services, tmp_path_factory.mktemp("stuck"), **settings) as made:
        yield made


@pytest.fixture(autouse=True)
def _nothing_is_stuck(api: ApiInstallation) -> None:
    execute(api, "delete from attempt_start")


def execute(api: ApiInstallation, text: str, *values: object) -> int:
    with psycopg.connect(api.installation.dsn, autocommit=True) as connection:
        return connection.execute(text.encode(), values).rowcount


def hung(
    api: ApiInstallation, queue: str, message: str, *, hours: int = 2, retry_count: int = 0, declared: bool = False
) -> str:
    """A retry that returned to a consumer in any language, which reported that it started and then nothing."""
    if not declared:
        api.installation.declare(queue)
    api.installation.request(queue, message, retry_count=retry_count)
    retry = api.installation.retry_of(message)
    properties, _ = api.installation.wait_message(queue)
    api.wait_state(retry, "returned")
    start(api, properties, hours=hours)
    return retry


def start(api: ApiInstallation, properties: pika.BasicProperties, *, hours: int) -> None:
    """Reports that an attempt at this message started so many hours ago."""
    own: dict[str, Any] = dict(properties.headers or {})
    entry = {"id": own["tarry-id"], "round": own["tarry-round"], "outcome": "started", "consumer": "host-1:99"}
    report = json.dumps({"outcomes": [entry | {"at_ms": own["tarry-due-ms"]}]}).encode()
    api.installation.channel.basic_publish("retry.reports", "", report, mandatory=True)
    age = "update attempt_start set seen_at = seen_at - make_interval(hours => %s) where retry_id = %s and round = %s"
    wait_for(lambda: execute(api, age, hours, own["tarry-id"], own["tarry-round"]), what="the start to be stored")


def name(terminal: Terminal, text: str) -> str:
    return f"{text}-{'api' if terminal.remote else 'direct'}"


def test_stuck_recover_sends_the_next_round_once(terminal: Terminal) -> None:
    api, queue = terminal.api, name(terminal, "quick.once")
    retry = hung(api, queue, queue, hours=0)
    assert terminal.json("stuck", "list") == []
    execute(api, "update attempt_start set seen_at = seen_at - interval '31 minutes'")
    (listed,) = terminal.json("stuck", "list")
    assert (listed["retry_id"], listed["queue"], listed["consumer"]) == (retry, queue, "host-1:99")
    early = terminal.run("stuck", "recover", retry)
    assert early.exit_code == 5
    assert "the consumer timeout of its queue has passed" in early.stderr

    answer = terminal.json("stuck", "recover", retry[:13], "--now", "--reason", "the host is gone")
    assert [(one["sent_to"], one["confirmed"]) for one in answer["recovered"]] == [("queue", True)]
    properties, body = api.installation.wait_message(queue)
    headers: dict[str, Any] = dict(properties.headers or {})
    assert (properties.message_id, body) == (queue, b"payload")
    assert (headers["tarry-round"], headers["tarry-count"], headers["retry_count"]) == (2, 2, 2)
    api.wait_state(retry, "returned")
    steps = [(one["round"], one["state"], one["reason"]) for one in api.get(f"/retries/{retry}")["steps"]]
    (stuck_step,) = [reason for round_, state, reason in steps if (round_, state) == (1, "stuck")]
    assert "by host-1:99, no outcome since: the host is gone" in stuck_step
    assert (2, "scheduled", "recovered from a stuck attempt: possibly a second delivery") in steps
    again = terminal.run("stuck", "recover", retry, "--now")
    assert (again.exit_code, "is not stuck: it is returned" in again.stderr) == (6, True)
    assert api.installation.depth(queue) == 0


def test_retry_now_recovers_a_stuck_attempt(terminal: Terminal) -> None:
    queue = name(terminal, "quick.hurried")
    retry = hung(terminal.api, queue, name(terminal, "hurried"))
    result = terminal.run("retry-now", retry, "--json")
    [answer] = json.loads(result.stdout)
    assert (result.exit_code, answer["answer"], answer["previous_state"]) == (0, "retried", "stuck"), result.output
    properties, _ = terminal.api.installation.wait_message(queue)
    assert (properties.headers or {})["tarry-round"] == 2
    terminal.api.wait_state(retry, "returned")
    assert terminal.api.rows(f"select manual_round from retry where id = '{retry}'") == [(2,)]  # noqa: S608 - an id


def test_stuck_recovery_by_the_service_can_be_paused(api: ApiInstallation) -> None:
    hung(api, "quick.paused", "paused")
    operator = Operator(api.installation)
    operator.do(lambda context: pause(context, "", scope="stuck-recovery", actor="ann"))
    assert operator.do(stuck.recover_all) == StuckRecovery()
    operator.do(lambda context: resume(context, "", scope="stuck-recovery", actor="ann"))
    assert len(operator.do(stuck.recover_all).recovered) == 1


def test_stuck_recover_can_send_to_review(terminal: Terminal) -> None:
    api, queue = terminal.api, name(terminal, "quick.review")
    retry = hung(api, queue, queue)
    answer = terminal.json("stuck", "recover", "--all", "--to-review")
    assert [(one["retry_id"], one["sent_to"]) for one in answer["recovered"]] == [(retry, "review")]
    api.wait_state(retry, "in_review")
    shown = terminal.json("review", "show", retry)
    assert (shown["retry_id"], shown["round"], shown["queue"]) == (retry, 2, queue)
    assert "stuck: started" in shown["reason"]
    result = terminal.run("review", "redrive", retry, "--yes")
    assert result.exit_code == 0, result.output
    properties, body = api.installation.wait_message(queue)
    assert (properties.message_id, body) == (queue, b"payload")

    # The redriven message hangs as well: it is recovered like the first time.
    api.wait_state(retry, "returned")
    start(api, properties, hours=2)
    answer = terminal.json("stuck", "recover", retry)
    assert [(one["round"], one["sent_to"]) for one in answer["recovered"]] == [(2, "queue")]
    properties, _ = api.installation.wait_message(queue)
    assert (properties.headers or {})["tarry-round"] == 3


def test_stuck_recover_refuses_what_was_not_kept_and_names_the_remedy(terminal: Terminal) -> None:
    api, queue = terminal.api, name(terminal, "quick.kept")
    lost, kept = hung(api, queue, f"{queue}-1"), hung(api, queue, f"{queue}-2")
    execute(api, "update retry set body = null, properties = null where id = %s", lost)
    assert "payload not kept" in terminal.run("stuck").stdout
    refused = terminal.run("stuck", "recover", lost)
    assert refused.exit_code == 5
    assert "its payload was not kept" in refused.stderr
    assert "only the hung consumer host-1:99 has the message. Restart it" in refused.stderr
    some = terminal.run("stuck", "recover", "--queue", f"{queue[:-3]}*", "--json")
    assert some.exit_code == 1
    answer = json.loads(some.stdout)
    assert ([one["retry_id"] for one in answer["recovered"]], list(answer["problems"])) == ([kept], [lost])
    assert api.get(f"/retries/{lost}")["state"] == "returned"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "Say which: retry ids, a queue (--queue), or all of them (--all)."),
        (("--all", "--queue", "x"), 2, "Say which"),
        (("11111111-1111-4111-8111-111111111111",), 4, "No retry has the id"),
        (("nobody",), 4, "No retry has the id 'nobody'"),
    ],
)
def test_stuck_recover_says_what_is_wrong(terminal: Terminal, words: tuple[str, ...], code: int, said: str) -> None:
    result = terminal.run("stuck", "recover", *words)
    assert (result.exit_code, said in result.stderr) == (code, True), result.output


def test_stuck_recover_is_done_once_by_several_at_a_time(api: ApiInstallation) -> None:
    hung(api, "quick.several", "several")
    operator = Operator(api.installation)

    async def both() -> list[StuckRecovery]:
        async with operator._context("one") as one, operator._context("other") as other:
            found = [await stuck._find(one), await stuck._find(other)]
            assert len(found[0]) == len(found[1]) == 1
            return list(
                await asyncio.gather(*(stuck.recover(context, everything(), actor="x") for context in (one, other)))
            )

    answers = asyncio.run(both())
    assert sum(len(one.recovered) for one in answers) == 1
    api.installation.wait_message("quick.several")
    assert api.rows("select count(*) from stuck_recovery where round = 1 and actor = 'x'") == [(1,)]
    assert api.installation.depth("quick.several") == 0


def everything() -> Wanted:
    return Wanted(everything=True)


def test_stuck_recovery_that_was_cut_off_is_finished_by_the_service(
    api: ApiInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry = hung(api, "quick.cut", "cut")
    operator = Operator(api.installation)

    async def refuse(*_: object) -> None:
        raise BrokerUnreachableError("it has just gone")

    with monkeypatch.context() as patch:
        patch.setattr(OperatorContext, "publish", refuse)
        answer = operator.do(lambda desk: stuck.recover(desk, everything(), actor="ann"))
    assert [(one.retry_id, one.confirmed) for one in answer.recovered] == [(retry, False)]
    assert api.installation.depth("quick.cut") == 0

    assert operator.do(stuck.recover_all).recovered == []
    assert api.installation.depth("quick.cut") == 0, "the caller may still be at work"
    execute(api, "update retry set state = 'held' where id = %s", retry)  # a pause began in between
    monkeypatch.setattr(stuck, "LEFT_FOR", timedelta(0))
    operator.do(stuck.recover_all)
    properties, _ = api.installation.wait_message("quick.cut")
    assert (properties.headers or {})["tarry-round"] == 2
    api.wait_state(retry, "returned")
    operator.do(stuck.recover_all)
    assert api.installation.depth("quick.cut") == 0


def test_stuck_recovery_by_the_service_waits_for_requests_and_for_a_second_look(api: ApiInstallation) -> None:
    hung(api, "quick.patience", "patience")
    operator = Operator(api.installation)
    assert operator.do(lambda context: stuck.recover_all(context, frozenset())) == StuckRecovery()
    operator.do(lambda context: pause_intake(context, actor="ann"))
    assert operator.do(stuck.recover_all) == StuckRecovery()
    operator.do(lambda context: resume_intake(context, actor="ann"))
    found = operator.do(stuck._find)
    known = frozenset(map(stuck._key, found))
    assert len(operator.do(lambda context: stuck.recover_all(context, known)).recovered) == 1


def test_stuck_recovery_by_the_service_sends_exhausted_messages_to_review(api: ApiInstallation) -> None:
    """A message that hangs every consumer must not be retried forever."""
    last = hung(api, "quick.last", "last", retry_count=2)
    more = hung(api, "quick.more", "more", retry_count=1)
    late = hung(api, "quick.late", "late")
    execute(api, "update retry set max_retries = 3 where id = any(%s)", [last, more, late])
    young = hung(api, "quick.young", "young", hours=0)
    answer = Operator(api.installation).do(stuck.recover_all)
    assert {one.retry_id: one.sent_to for one in answer.recovered} == {last: "review", more: "queue", late: "queue"}
    assert [api.get(f"/retries/{one}")["state"] for one in (last, young)] == ["in_review", "returned"]
    found = api.get("/actions", params={"kind": "recover_stuck", "target": last})["items"]
    assert [(one["actor"], one["outcome"]["sent_to"]) for one in found] == [("operator", "review")]


def unreachable(*_: object) -> None:
    raise BrokerUnreachableError("no management API")


def test_stuck_recovery_waits_for_the_timeout_of_the_queue(
    api: ApiInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the management API, RabbitMQ's default is assumed."""
    about = {"x-queue-type": "quorum", "x-consumer-timeout": 6 * 3_600_000}
    api.installation.channel.queue_declare("quick.patient", durable=True, arguments=about)
    retry = hung(api, "quick.patient", "patient", declared=True)
    operator = Operator(api.installation)
    assert operator.do(stuck.recover_all).recovered == []
    (listed,) = operator.do(stuck.list_stuck)
    assert listed.recovered_from - listed.since == timedelta(hours=6, minutes=3)
    monkeypatch.setattr(stuck, "_read_timeouts", unreachable)
    (listed,) = operator.do(stuck.list_stuck)
    assert (listed.retry_id, listed.recovered_from - listed.since) == (retry, timedelta(minutes=33))
