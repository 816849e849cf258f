"""The same actions at a terminal, straight on broker and Postgres or through the API: answers, errors, exit codes."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tarry.cli.main import app
from tests.integration.operations.terminal import Terminal
from tests.support.api import ApiInstallation
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series


def _unique(terminal: Terminal, name: str) -> str:
    return f"{name}-{'api' if terminal.remote else 'direct'}"


def test_a_waiting_retry_is_cancelled_once(terminal: Terminal) -> None:
    message = _unique(terminal, "cancel")
    retry = terminal.api.schedule("slow.c", message)
    result = terminal.run("cancel", message, "--reason", "not wanted", "--requested-by", "ann")
    assert (result.exit_code, result.stdout) == (
        0,
        f"✓ {message} (queue slow.c, round 1): cancelled: it will not return\n",
    )
    again = terminal.run("cancel", retry)
    assert again.exit_code == 6
    assert f"Retry {retry} (queue slow.c, round 1) is cancelled: nothing is waiting." in again.stderr
    actor = "ops/ann" if terminal.remote else "ann"
    steps = [(step["state"], step["actor"], step["reason"]) for step in terminal.api.get(f"/retries/{retry}")["steps"]]
    assert steps[-1] == ("cancelled", actor, "not wanted")
    told = terminal.api.get("/actions", params={"target": message})["items"][0]
    assert (told["actor"], told["kind"], told["outcome"]["answer"]) == (actor, "cancel", "cancelled")


def test_a_waiting_retry_is_sent_now_and_counts_as_the_same_attempt(terminal: Terminal) -> None:
    message = _unique(terminal, "now")
    retry = terminal.api.schedule("slow.n", message)
    [answer] = terminal.json("retry-now", retry)
    assert (answer["answer"], answer["queue"], answer["round"]) == ("retried", "slow.n", 1)
    properties, body = terminal.api.installation.wait_message("slow.n")
    headers = properties.headers or {}
    assert (properties.message_id, body) == (message, b"payload")
    assert (headers["tarry-round"], headers["tarry-count"]) == (2, 1)
    terminal.api.wait_state(retry, "returned")
    too_late = terminal.run("retry-now", retry)
    assert (too_late.exit_code, "has already returned" in too_late.stderr) == (5, True)


def test_a_message_id_may_contain_slashes(terminal: Terminal) -> None:
    message = _unique(terminal, "eu/orders/4711?a=b#c")
    retry = terminal.api.schedule("slow.s", message)
    [found] = terminal.json("history", message)
    assert (found["retry_id"], found["message_id"]) == (retry, message)
    assert terminal.run("cancel", message).stdout.startswith(f"✓ {message} (queue slow.s, round 1): cancelled")
    assert "is cancelled: nothing is waiting" in terminal.run("retry-now", message).stderr
    reviewed = f"{message}/review"
    terminal.api.installation.request("slow.s", reviewed, error_class="final")
    wait_for(lambda: terminal.run("review", "show", reviewed).exit_code == 0, what="it to be in review")
    assert "payload" in terminal.run("review", "show", reviewed, "--payload").stdout


def test_what_nobody_knows_is_said_so(terminal: Terminal) -> None:
    result = terminal.run("cancel", "nobody")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr.startswith("error: Nothing is known of 'nobody'")


def test_many_are_asked_about_and_each_is_answered(terminal: Terminal) -> None:
    ids = [_unique(terminal, f"many-{number}") for number in range(11)]
    for message in ids:
        terminal.api.schedule("slow.m", message)
    refused = terminal.run("cancel", *ids)
    assert (
        refused.exit_code,
        "cancel 11 retries. This is a large operation: confirm with --yes." in refused.stderr,
    ) == (2, True)
    result = terminal.run("cancel", "-", "--yes", stdin="\n".join([*ids, "nobody"]))
    assert result.exit_code == 1
    assert result.stdout.count("cancelled: it will not return") == 11
    assert "Nothing is known of 'nobody'" in result.stderr


def test_a_destination_is_paused_shown_and_resumed(terminal: Terminal) -> None:
    queue = terminal.known(_unique(terminal, "slow.p"))
    paused = terminal.run("pause", queue, "--for", "30m", "--reason", "it burns\x1b[2J")
    if terminal.remote:
        assert (paused.exit_code, "reason" in paused.stderr) == (2, True)  # no control characters over HTTP
        paused = terminal.run("pause", queue, "--for", "30m", "--reason", "it burns")
    assert paused.exit_code == 0, paused.output
    assert paused.stdout.startswith(f"✓ {queue} is paused until 20")
    [hold] = [one for one in terminal.json("pauses")["paused_destinations"] if one["destination"] == queue]
    assert (hold["state"], hold["depth"], hold["pauses"][0]["pattern"]) == ("holding", 0, queue)
    shown = terminal.run("pauses")
    assert (queue in shown.stdout, "it burns" in shown.stdout, "\x1b" in shown.stdout) == (True, True, False)
    assert f"{queue}: paused for" in Terminal(terminal.api, remote=False).run("status").stdout
    assert terminal.json("resume", queue)["destinations"] == [queue]
    nothing = terminal.run("resume", "nowhere")
    assert (nothing.exit_code, "Nothing that matches 'nowhere' is paused" in nothing.stderr) == (4, True)


def test_a_destination_is_throttled_shown_and_unthrottled(terminal: Terminal) -> None:
    queue = terminal.known(_unique(terminal, "slow.t"))
    throttled = terminal.run("throttle", queue, "--rate", "50", "--for", "2h", "--reason", "weak database")
    assert throttled.exit_code == 0, throttled.output
    assert throttled.stdout.startswith(f"✓ {queue}: at most 50 returns a second until 20")
    wait_for(lambda: "throttled" in terminal.run("pauses").stdout, what="the service to show it")
    shown = terminal.run("pauses").stdout
    assert f"{queue}: throttled to 50/s by" in shown
    assert "weak database" in shown
    assert f"{queue}: throttled for" in terminal.run("status").stdout
    assert terminal.json("throttle", queue, "--rate", "60")["destinations"] == {queue: 60}
    assert terminal.json("unthrottle", queue)["destinations"] == [queue]
    nothing = terminal.run("unthrottle", "nowhere")
    assert (nothing.exit_code, "Nothing that matches 'nowhere' is throttled" in nothing.stderr) == (4, True)
    assert terminal.run("throttle", queue).exit_code == 2
    assert terminal.run("throttle", "ordres", "--rate", "5").exit_code == 4
    actions = terminal.json("actions", "--target", queue)
    assert [one["kind"] for one in actions] == ["unthrottle", "throttle", "throttle"]


def test_a_name_that_nobody_knows_is_not_paused(terminal: Terminal) -> None:
    result = terminal.run("pause", "ordres")
    assert (result.exit_code, "No retry ever went to 'ordres'" in result.stderr) == (4, True)
    wrong = terminal.run("pause", "orders", "--for", "soon")
    assert (wrong.exit_code, "--for `soon`" in wrong.stderr) == (2, True)
    for_nothing = terminal.run("resume", "orders", "--rate", "0")
    assert for_nothing.exit_code == 2


def test_the_intake_is_paused_and_opened(terminal: Terminal) -> None:
    assert terminal.json("intake", "pause", "--reason", "deploy")["paused"] is True
    assert terminal.json("pauses")["intake"]["reason"] == "deploy"
    opened = terminal.run("intake", "resume")
    assert opened.stdout.startswith("✓ the intake is open")


def test_queues_with_a_slash_are_queues_too(api: ApiInstallation) -> None:
    api.schedule("slow/x", "slash")
    answer = api.call("POST", "/queues/slow%2Fx/pause", json={"requested_by": "ann"})
    assert (answer.status_code, answer.json()["destinations"]) == (200, ["slow/x"])
    listed = api.get("/queues", params={"match": "slow/*"})["items"]
    assert [(one["name"], one["paused"]["state"]) for one in listed] == [("slow/x", "holding")]
    assert api.call("POST", "/queues/slow%2Fx/resume").status_code == 200


def test_wrong_states_have_their_statuses(api: ApiInstallation) -> None:
    retry = api.schedule("slow.s", "states")
    assert api.call("POST", f"/retries/{retry}/cancel").json()["answer"] == "cancelled"
    assert api.call("POST", f"/retries/{retry}/cancel").status_code == 400
    assert api.call("POST", f"/retries/{retry}/retry").status_code == 400
    assert api.call("POST", "/retries/nobody/cancel").status_code == 404
    assert api.call("POST", "/queues/slow.s/pause", json={"lasts": "soon"}).status_code == 422
    assert api.call("POST", "/queues/slow.s/pause?because=why").status_code == 422


def test_the_same_key_does_it_once(api: ApiInstallation) -> None:
    retry = api.schedule("slow.k", "key")
    first, second = (
        api.call("POST", f"/retries/{retry}/cancel", headers={"Idempotency-Key": "once-and-for-all"}) for _ in "ab"
    )
    assert (first.status_code, second.status_code, first.json()) == (200, 200, second.json())


def test_without_postgres_it_says_so_and_does_nothing(api: ApiInstallation) -> None:
    env = api.installation.environment | {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "TARRY_API": ""}
    result = CliRunner().invoke(app, ["cancel", "x"], env=env)
    assert (result.exit_code, result.stderr.startswith("error: Postgres does not answer")) == (1, True)


def test_without_a_broker_it_says_so_and_nothing_is_wished_for(api: ApiInstallation) -> None:
    retry = api.schedule("slow.w", "brokerless")
    env = api.installation.environment | {"RABBITMQ_URL": "amqp://guest:guest@127.0.0.1:1/", "TARRY_API": ""}
    result = CliRunner().invoke(app, ["cancel", retry], env=env)
    assert (result.exit_code, result.stderr.startswith("error: No broker answers")) == (1, True)
    assert retry not in {str(row[0]) for row in api.rows("select retry_id from diversion")}
    wait_for(lambda: api.get(f"/retries/{retry}")["state"] == "scheduled", what="it to wait as before")


def test_the_audit_balances_with_all_of_it(api: ApiInstallation) -> None:
    """Cancelled and hurried, their originals still in the tier; held, and released by the service itself."""
    terminal = Terminal(api, remote=False)
    for message in ("balance-cancel", "balance-now"):
        api.schedule("slow.v", message)
    assert terminal.run("cancel", "balance-cancel").exit_code == 0
    assert terminal.run("retry-now", "balance-now").exit_code == 0
    api.wait_state(api.installation.retry_of("balance-now"), "returned")
    api.schedule("quick.v", "balance-first", retry_after_ms=60_000)
    assert terminal.run("pause", "quick.v").exit_code == 0
    api.installation.request("quick.v", "balance-held")
    held = api.installation.retry_of("balance-held")
    wait_for(lambda: terminal.json("history", "balance-held")[0]["state"] == "held", what="it to be held")
    during = terminal.run("audit", "verify", "--grace", "1s")
    assert (during.exit_code, "held" in during.stdout) == (0, True), during.output
    assert terminal.run("resume", "quick.v").exit_code == 0
    wait_for(lambda: terminal.json("history", "balance-held")[0]["state"] == "returned", what="its return")
    assert api.installation.wait_message("quick.v")[0].message_id == "balance-held"
    after = terminal.run("audit", "verify", "--grace", "1s")
    assert after.exit_code == 0, after.output
    steps = [step["state"] for step in api.get(f"/retries/{held}")["steps"]]
    assert steps == ["claimed", "scheduled", "held", "returned"]


def test_a_policy_is_paused_for_a_while_with_a_canary_at_its_end(terminal: Terminal) -> None:
    """S4 pauses by type and for a time."""
    end = ("--for", "30m", "--then-canary", "--then-rate", "200")
    paused = terminal.json("pause", "--policy", "slow", "--reason", "it burns", *end)
    assert (paused["scope"], paused["destinations"], paused["without_key"]) == ("policy", ["policy slow"], 0)
    [shown] = [one for one in terminal.json("pauses")["paused_destinations"] if one["kind"] == "policy"]
    assert shown["pauses"][0]["at_end"] == {"rate": 200, "canary": True, "observe": 10.0}
    text = terminal.run("pauses").stdout
    assert "(then released at 200/s after canaries): it burns" in text
    assert "policy slow: paused for" in terminal.run("status").stdout
    resumed = terminal.run("resume", "--policy", "slow")
    assert resumed.stdout.startswith("✓ policy slow: releasing held messages at 500/s")
    told = terminal.api.get("/actions", params={"target": "policy slow"})["items"]
    assert {one["kind"] for one in told} == {"pause", "resume"}


def test_types_are_paused_for_a_while_and_shown(terminal: Terminal) -> None:
    automatic = terminal.run("pause", "--type", "automatic-retries", "--for", "1h", "--reason", "S4")
    assert automatic.stdout.startswith("✓ automatic retries are paused until 20")
    stuck = terminal.run("pause", "--type", "stuck-recovery", "--for", "1h")
    assert stuck.stdout.startswith("✓ the recovery of stuck messages is paused until 20")

    def shown() -> bool:
        """A service reuses its status for some seconds."""
        text = terminal.run("status").stdout
        return "automatic retries: paused for" in text and "the recovery of stuck messages: paused for" in text

    wait_for(shown, what="the status to show both")
    assert "stuck recovery: paused by" in terminal.run("pauses").stdout
    for type_ in ("automatic-retries", "stuck-recovery"):
        assert terminal.run("resume", "--type", type_).exit_code == 0
    again = terminal.run("resume", "--type", "stuck-recovery")
    assert (again.exit_code, "There is no pause of stuck recovery" in again.stderr) == (4, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("pause",), "one of a queue, --policy, --job-type and --type"),
        (("pause", "orders", "--policy", "slow"), "one of a queue, --policy, --job-type and --type"),
        (("resume", "--job-type", "pdf", "--type", "automatic-retries"), "one of a queue"),
        (("pause", "--policy", "slow", "--then-canary"), "need --for"),
        (("pause", "--type", "everything"), "automatic-retries"),
    ],
)
def test_a_pause_without_one_clear_target_is_refused(terminal: Terminal, arguments: tuple[str, ...], said: str) -> None:
    result = terminal.run(*arguments)
    assert (result.exit_code, said in " ".join(result.stderr.split())) == (2, True), result.stderr


def test_the_intake_is_paused_for_a_while(terminal: Terminal) -> None:
    paused = terminal.json("intake", "pause", "--for", "3s", "--reason", "deploy")
    assert (paused["paused"], paused["until"] > paused["at"]) == (True, True)
    wait_for(lambda: not terminal.json("pauses")["intake"]["paused"], deadline=60, what="the intake to be open")

    def recorded() -> bool:
        latest = terminal.api.get("/actions", params={"target": "intake"})["items"][0]
        return (latest["kind"], "pause expired" in str(latest["detail"])) == ("resume_intake", True)

    wait_for(recorded, deadline=60, what="its end to be recorded")


def test_a_pause_over_http_with_a_wrong_field_pauses_nothing(api: ApiInstallation) -> None:
    for body in (
        {"scope": "policy"},
        {"scope": "queue", "name": "a"},
        {"scope": "policy", "name": "slow", "lats": "1h"},
    ):
        assert api.call("POST", "/pauses", json=body).status_code in (400, 422)
    unknown = api.call("POST", "/pauses", json={"scope": "policy", "name": "nobody"})
    assert (unknown.status_code, "There is no policy" in unknown.text) == (404, True)
    no_end = api.call("POST", "/pauses", json={"scope": "policy", "name": "slow", "at_end": {"rate": 5}})
    assert no_end.status_code in (400, 409, 422)
    assert api.get("/pauses")["pauses"] == []
