"""The same actions at a terminal, straight on broker and Postgres or through the API: answers, errors, exit codes."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tarry.cli.main import app
from tests.harness.waiting import wait_for
from tests.integration.api.calling import Installation
from tests.integration.control.terminal import Terminal

pytestmark = pytest.mark.one_series


def _unique(terminal: Terminal, name: str) -> str:
    return f"{name}-{'api' if terminal.through_the_api else 'direct'}"


def test_a_waiting_retry_is_cancelled_once(terminal: Terminal) -> None:
    message = _unique(terminal, "cancel")
    retry = terminal.there.schedule("slow.c", message)
    result = terminal.run("cancel", message, "--reason", "not wanted", "--requested-by", "ann")
    assert (result.exit_code, result.stdout) == (
        0,
        f"✓ {message} (queue slow.c, round 1): cancelled: it will not return\n",
    )
    again = terminal.run("cancel", retry)
    assert again.exit_code == 6
    assert f"Retry {retry} (queue slow.c, round 1) is cancelled: nothing of it waits." in again.stderr
    actor = "ops/ann" if terminal.through_the_api else "ann"
    steps = [
        (step["state"], step["actor"], step["reason"]) for step in terminal.there.get(f"/retries/{retry}")["steps"]
    ]
    assert steps[-1] == ("cancelled", actor, "not wanted")
    told = terminal.there.get("/actions", params={"target": message})["items"][0]
    assert (told["actor"], told["kind"], told["outcome"]["answer"]) == (actor, "cancel", "cancelled")


def test_a_waiting_retry_is_sent_now_and_counts_as_the_same_attempt(terminal: Terminal) -> None:
    message = _unique(terminal, "now")
    retry = terminal.there.schedule("slow.n", message)
    [answer] = terminal.json("retry-now", retry)
    assert (answer["answer"], answer["queue"], answer["round"]) == ("retried", "slow.n", 1)
    properties, body = terminal.there.place.wait_message("slow.n")
    headers = properties.headers or {}
    assert (properties.message_id, body) == (message, b"payload")
    assert (headers["tarry-round"], headers["tarry-count"]) == (2, 1)
    terminal.there.wait_state(retry, "returned")
    too_late = terminal.run("retry-now", retry)
    assert (too_late.exit_code, "has already returned" in too_late.stderr) == (5, True)


def test_what_nobody_knows_is_said_so(terminal: Terminal) -> None:
    result = terminal.run("cancel", "nobody")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr.startswith("error: Nothing is known of 'nobody'")


def test_many_are_asked_about_and_each_is_answered(terminal: Terminal) -> None:
    ids = [_unique(terminal, f"many-{number}") for number in range(11)]
    for message in ids:
        terminal.there.schedule("slow.m", message)
    refused = terminal.run("cancel", *ids)
    assert (refused.exit_code, "cancel 11 retries. That is large: say so with --yes." in refused.stderr) == (2, True)
    result = terminal.run("cancel", "-", "--yes", given="\n".join([*ids, "nobody"]))
    assert result.exit_code == 1
    assert result.stdout.count("cancelled: it will not return") == 11
    assert "Nothing is known of 'nobody'" in result.stderr


def test_a_destination_is_paused_shown_and_resumed(terminal: Terminal) -> None:
    queue = terminal.known(_unique(terminal, "slow.p"))
    paused = terminal.run("pause", queue, "--for", "30m", "--reason", "it burns\x1b[2J")
    if terminal.through_the_api:
        assert (paused.exit_code, "reason" in paused.stderr) == (2, True)  # no control characters over HTTP
        paused = terminal.run("pause", queue, "--for", "30m", "--reason", "it burns")
    assert paused.exit_code == 0, paused.output
    assert paused.stdout.startswith(f"✓ {queue} is held until 20")
    [hold] = [one for one in terminal.json("holds")["holds"] if one["destination"] == queue]
    assert (hold["state"], hold["depth"], hold["pauses"][0]["pattern"]) == ("holding", 0, queue)
    shown = terminal.run("holds")
    assert (queue in shown.stdout, "it burns" in shown.stdout, "\x1b" in shown.stdout) == (True, True, False)
    assert f"{queue}: paused for" in Terminal(terminal.there, through_the_api=False).run("status").stdout
    assert terminal.json("resume", queue)["destinations"] == [queue]
    nothing = terminal.run("resume", "nowhere")
    assert (nothing.exit_code, "Nothing that matches 'nowhere' is paused" in nothing.stderr) == (4, True)


def test_a_name_that_nobody_knows_is_not_paused(terminal: Terminal) -> None:
    result = terminal.run("pause", "ordres")
    assert (result.exit_code, "No retry ever went to 'ordres'" in result.stderr) == (4, True)
    wrong = terminal.run("pause", "orders", "--for", "soon")
    assert (wrong.exit_code, "--for `soon`" in wrong.stderr) == (2, True)
    for_nothing = terminal.run("resume", "orders", "--rate", "0")
    assert for_nothing.exit_code == 2


def test_the_intake_is_paused_and_opened(terminal: Terminal) -> None:
    assert terminal.json("intake", "pause", "--reason", "deploy")["paused"] is True
    assert terminal.json("holds")["intake"]["reason"] == "deploy"
    opened = terminal.run("intake", "resume")
    assert opened.stdout.startswith("✓ the intake is open")


def test_queues_with_a_slash_are_queues_too(there: Installation) -> None:
    there.schedule("slow/x", "slash")
    answer = there.call("POST", "/queues/slow%2Fx/pause", json={"requested_by": "ann"})
    assert (answer.status_code, answer.json()["destinations"]) == (200, ["slow/x"])
    listed = there.get("/queues", params={"match": "slow/*"})["items"]
    assert [(one["name"], one["hold"]["state"]) for one in listed] == [("slow/x", "holding")]
    assert there.call("POST", "/queues/slow%2Fx/resume").status_code == 200


def test_wrong_states_have_their_statuses(there: Installation) -> None:
    retry = there.schedule("slow.s", "states")
    assert there.call("POST", f"/retries/{retry}/cancel").json()["answer"] == "cancelled"
    assert there.call("POST", f"/retries/{retry}/cancel").status_code == 400
    assert there.call("POST", f"/retries/{retry}/retry-now").status_code == 400
    assert there.call("POST", "/retries/nobody/cancel").status_code == 404
    assert there.call("POST", "/queues/slow.s/pause", json={"lasts": "soon"}).status_code == 422
    assert there.call("POST", "/queues/slow.s/pause?because=why").status_code == 422


def test_the_same_key_does_it_once(there: Installation) -> None:
    retry = there.schedule("slow.k", "key")
    first, second = (
        there.call("POST", f"/retries/{retry}/cancel", headers={"Idempotency-Key": "once-and-for-all"}) for _ in "ab"
    )
    assert (first.status_code, second.status_code, first.json()) == (200, 200, second.json())


def test_without_postgres_it_says_so_and_does_nothing(there: Installation) -> None:
    env = there.place.environment | {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "TARRY_API": ""}
    result = CliRunner().invoke(app, ["cancel", "x"], env=env)
    assert (result.exit_code, result.stderr.startswith("error: Postgres does not answer")) == (1, True)


def test_without_a_broker_it_says_so_and_nothing_is_wished_for(there: Installation) -> None:
    retry = there.schedule("slow.w", "brokerless")
    env = there.place.environment | {"RABBITMQ_URL": "amqp://guest:guest@127.0.0.1:1/", "TARRY_API": ""}
    result = CliRunner().invoke(app, ["cancel", retry], env=env)
    assert (result.exit_code, result.stderr.startswith("error: No broker answers")) == (1, True)
    assert retry not in {str(row[0]) for row in there.rows("select retry_id from diversion")}
    wait_for(lambda: there.get(f"/retries/{retry}")["state"] == "scheduled", what="it to wait as before")


def test_the_books_balance_with_all_of_it(there: Installation) -> None:
    """Cancelled and hurried, their originals still in the tier; held, and released by the service itself."""
    terminal = Terminal(there, through_the_api=False)
    for message in ("balance-cancel", "balance-now"):
        there.schedule("slow.v", message)
    assert terminal.run("cancel", "balance-cancel").exit_code == 0
    assert terminal.run("retry-now", "balance-now").exit_code == 0
    there.wait_state(there.place.retry_of("balance-now"), "returned")
    there.schedule("quick.v", "balance-first", retry_after_ms=60_000)
    assert terminal.run("pause", "quick.v").exit_code == 0
    there.place.request("quick.v", "balance-held")
    held = there.place.retry_of("balance-held")
    wait_for(lambda: terminal.json("history", "balance-held")[0]["state"] == "held", what="it to be held")
    during = terminal.run("audit", "verify", "--grace", "1s")
    assert (during.exit_code, "held" in during.stdout) == (0, True), during.output
    assert terminal.run("resume", "quick.v").exit_code == 0
    wait_for(lambda: terminal.json("history", "balance-held")[0]["state"] == "returned", what="its return")
    assert there.place.wait_message("quick.v")[0].message_id == "balance-held"
    after = terminal.run("audit", "verify", "--grace", "1s")
    assert after.exit_code == 0, after.output
    steps = [step["state"] for step in there.get(f"/retries/{held}")["steps"]]
    assert steps == ["claimed", "scheduled", "held", "returned"]
