from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer

from tarry.cli import explain
from tarry.cli.output import Commands
from tests.support.cli import run_cli

FRIDAY_NIGHT = int(datetime(2026, 11, 20, 21, 10, tzinfo=UTC).timestamp()) * 1_000_000_000
SHIPPED = str(Path(__file__).parents[3] / "topology")


@pytest.fixture
def tarry() -> typer.Typer:
    """The command as a group of its own."""
    app = typer.Typer(cls=Commands, pretty_exceptions_enable=False)
    explain.register(app)
    app.command("other")(lambda: None)
    return app


def run(app: typer.Typer, *arguments: str, stdin: str | None = None) -> tuple[int, str]:
    result = run_cli(["explain", "--topology", SHIPPED, *arguments], stdin=stdin)
    return result.exit_code, result.output


def answer(app: typer.Typer, *arguments: str, stdin: str | None = None) -> Any:
    code, output = run(app, *arguments, "--json", stdin=stdin)
    assert code == 0, output
    return json.loads(output)


def test_a_failure_described_by_flags(tarry: typer.Typer) -> None:
    found = answer(tarry, "--queue", "orders", "--count", "1")
    assert found.pop("due")
    assert found.pop("topology")["folder"] == SHIPPED
    assert found == {
        "outcome": "schedule",
        "reason": None,
        "form": "headers",
        "queue": "orders",
        "owner": None,
        "policy": "default",
        "policy_why": "the first of 8 that matches (queue = '*'), number 8",
        "class": "retryable",
        "class_why": "no rule of the policy matches, so the error is retryable",
        "retry_count": 2,
        "max_retries": 3,
        "delay_ms": [4_000, 5_000],
        "delay_why": "4s is the policy's delay before retry 2; up to 1s of jitter is added",
        "window_why": "",
        "itinerary": [["retry.delay.4s"], ["retry.delay.5s"]],
        "legs_ms": [],
        "lane": None,
        "returns_to": "queue orders",
        "return_priority": None,
        "priority_why": "",
        "eligibility": "",
        "budgets": [],
        "budget_why": "",
        "adaptive": "",
        "max_rate": None,
        "breaker": "",
        "spends_attempt": True,
        "review_queue": "manual-review.pending",
    }


@pytest.mark.parametrize(
    ("flags", "outcome", "why"),
    [
        (
            ["--error-type", "RateLimitError"],
            "rate_limited",
            "rule 3 of the policy matches: type '*RateLimit*'",
        ),
        (["--error-type", "x", "--error-reason", "HTTP 429"], "rate_limited", "rule 4 of the policy matches: type '*'"),
        (["--class", "final", "--error-type", "RateLimitError"], "final", "the request says so"),
    ],
)
def test_the_class_is_told_with_its_reason(tarry: typer.Typer, flags: list[str], outcome: str, why: str) -> None:
    found = answer(tarry, "--queue", "runs.nightly", *flags)
    assert found["class"] == outcome
    assert found["class_why"].startswith(why)


@pytest.mark.parametrize(
    ("flags", "delay", "why"),
    [
        (
            ["--class", "rate_limited", "--retry-after", "90s"],
            [90_000, 90_000],
            "the request asks for 1m 30s, and a",
        ),
        (
            ["--class", "rate_limited"],
            [60_000, 60_000],
            "1m is the policy's delay before retry 1; a rate limit",
        ),
        (["--retry-after", "90s"], [90_000, 90_000], "the request asks for 1m 30s, which is more than the policy's 1m"),
        (["--retry-after", "5s"], [60_000, 60_000], "1m is the policy's delay before retry 1"),
    ],
)
def test_the_delay_is_told_with_its_reason(tarry: typer.Typer, flags: list[str], delay: list[int], why: str) -> None:
    found = answer(tarry, "--queue", "runs.nightly", *flags)
    assert found["delay_ms"] == delay
    assert found["delay_why"].startswith(why)


def test_explain_shows_how_a_window_moved_the_due_time_and_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("time.time_ns", lambda: FRIDAY_NIGHT)
    (tmp_path / "tarry.toml").write_text(
        '[[policy]]\nname = "office"\nschedule = ["2s"]\nmax_retries = 1\n'
        'window = { only = "mon-fri 08:00-20:00", zone = "Europe/Zagreb", spread = "15m" }\n'
    )
    shown = ["explain", "--topology", str(tmp_path)]
    why = (
        "Fri 2026-11-20 22:10 is not in the window, only mon-fri 08:00-20:00 (Europe/Zagreb); moved to the next "
        "opening, plus up to 15m at random"
    )

    found = json.loads(run_cli([*shown, "--queue", "orders", "--json"]).output)
    assert found["window_why"] == why
    opens, latest = found["due"]
    assert (opens, latest[:16]) == ("2026-11-23T07:00:00.000Z", "2026-11-23T07:14")

    assert f"window     {why}" in run_cli([*shown, "--queue", "orders"]).output.replace("\n", " ")
    assert "Messages return only mon-fri 08:00-20:00 (Europe/Zagreb)." in run_cli([*shown, "--schedule"]).output


def test_explain_shows_the_lowest_rate_of_the_queues_policies(tmp_path: Path) -> None:
    policies = [
        ("vip", '{ queue = "orders.*", priority = "high" }', "max_rate = 5"),
        ("orders", '{ queue = "orders.*" }', "max_rate = 50"),
        ("rest", '{ queue = "*" }', "max_rate = 1"),
    ]
    (tmp_path / "tarry.toml").write_text(
        "\n".join(
            f'[[policy]]\nname = "{name}"\nmatch = {match}\nschedule = ["2s"]\nmax_retries = 1\n{rate}\n'
            for name, match, rate in policies
        )
    )
    shown = ["explain", "--topology", str(tmp_path)]
    assert json.loads(run_cli([*shown, "--queue", "orders.eu", "--json"]).output)["max_rate"] == 5
    assert "max rate   5 returns a second to this queue" in run_cli([*shown, "--queue", "orders.eu"]).output
    schedule = run_cli([*shown, "--schedule", "--policy", "orders"]).output
    assert "At most 50 messages a second return to each queue." in schedule


def test_explain_shows_the_breaker_of_the_first_policy_that_has_one(tmp_path: Path) -> None:
    policies = [
        ("vip", '{ queue = "orders.*", priority = "high" }', ""),
        ("orders", '{ queue = "orders.*" }', 'breaker = { failed = "30%", of = 5 }'),
        ("rest", '{ queue = "*" }', "breaker = { of = 99 }"),
    ]
    (tmp_path / "tarry.toml").write_text(
        "\n".join(
            f'[[policy]]\nname = "{name}"\nmatch = {match}\nschedule = ["2s"]\nmax_retries = 1\n{breaker}\n'
            for name, match, breaker in policies
        )
    )
    shown, rule = ["explain", "--topology", str(tmp_path)], "opens if 30% of at least 5 returns within 1m fail again"
    found = json.loads(run_cli([*shown, "--queue", "orders.eu", "--header", "priority=high", "--json"]).output)
    assert (found["policy"], found["breaker"]) == (
        "vip",
        f"{rule}; probes after 30s, at most 15m (policy orders)",
    )
    assert f"breaker    {rule}" in run_cli([*shown, "--queue", "orders.eu"]).output
    schedule = run_cli([*shown, "--schedule", "--policy", "orders"]).output
    assert f"The breaker of a queue {rule}" in schedule.replace("\n", " ")


def test_explain_shows_the_priority_of_the_return(tarry: typer.Typer) -> None:
    found = answer(tarry, "--queue", "runs.nightly")
    assert (found["return_priority"], found["priority_why"]) == (
        5,
        "the policy's return_priority; it has none of its own",
    )
    said = {"properties": {"priority": 3, "headers": {"original_queue": "runs.nightly"}}}
    assert (
        "priority   5: the policy's return_priority; its own is 3"
        in run(tarry, "--message", "-", stdin=json.dumps(said))[1]
    )
    said["properties"]["headers"] = {"original_queue": "orders"}
    assert "priority   3: its own" in run(tarry, "--message", "-", stdin=json.dumps(said))[1]
    assert "Messages return with priority 5." in run(tarry, "--schedule", "--policy", "runs")[1]


def test_what_ends_in_review_says_so(tarry: typer.Typer) -> None:
    found = answer(tarry, "--queue", "orders", "--count", "3")
    assert (found["outcome"], found["reason"]) == ("review", "exhausted: 3 of 3 retries spent")
    refused = answer(tarry, "--queue", "retry.audit")
    assert refused["reason"] == "the origin 'retry.audit' is a queue of tarry's or the broker's own"


MESSAGE = {
    "properties": {
        "message_id": "m-1",
        "delivery_mode": 2,
        "headers": {
            "x-death": [
                {"count": 1, "queue": "orders", "reason": "rejected", "exchange": "", "routing-keys": ["orders"]}
            ],
            "nested": {"list": [1, 2.5, None, True, "x"]},
        },
    },
    "payload": "aGk=",
    "payload_encoding": "base64",
    "exchange": "retry.intake",
    "routing_key": "orders",
}


def test_a_message_pasted_as_json(tarry: typer.Typer, tmp_path: Path) -> None:
    file = tmp_path / "message.json"
    file.write_text(json.dumps(MESSAGE))
    found = answer(tarry, "--message", str(file))
    assert (found["form"], found["queue"], found["policy"]) == ("reject", "orders", "default")


def test_a_list_of_messages_on_stdin(tarry: typer.Typer) -> None:
    found = answer(tarry, "--message", "-", stdin=json.dumps([MESSAGE, {"payload": {"a": 1}, "headers": {"b": 2}}]))
    assert [one["outcome"] for one in found] == ["schedule", "review"]
    assert found[1]["reason"].startswith("no origin")


def test_with_a_queue_the_question_is_what_a_reject_there_would_do(tarry: typer.Typer) -> None:
    found = answer(tarry, "--message", "-", "--queue", "email.welcome", stdin=json.dumps(MESSAGE))
    assert (found["form"], found["queue"], found["policy"]) == ("reject", "email.welcome", "email")


@pytest.mark.parametrize(
    "pasted", ["", "5", "{", '{"properties": 5}', '{"payload": "*", "payload_encoding": "base64"}']
)
def test_what_is_no_message_is_an_error_that_shows_one(tarry: typer.Typer, pasted: str) -> None:
    code, output = run(tarry, "--message", "-", stdin=pasted)
    assert code == 2
    assert "error: stdin does not contain a message" in output
    assert '"routing_key": "orders"' in output


def test_people_get_lines(tarry: typer.Typer) -> None:
    code, output = run(tarry, "--queue", "notifications.push", "--priority", "critical", "--count", "0")
    first, *lines = output.splitlines()
    assert code == 0
    assert first.startswith(f"Topology: {SHIPPED} (shipped with tarry, digest ")
    assert lines[0] == "queue      notifications.push (read from: headers)"
    assert lines[3] == "outcome    retry 1 of 10"
    assert lines[4].startswith("delay      10s to 13s: 10s is the policy's delay before retry 1; up to 3s of jitter")
    assert lines[5] == "waits in   retry.delay.10s"
    assert lines[6] == "           retry.delay.10s, then retry.ladder.1.3s (with the most jitter)"
    assert lines[8] == "returns to queue notifications.push"


def test_a_round_that_spends_nothing_says_so(tarry: typer.Typer) -> None:
    _, output = run(tarry, "--queue", "runs.x", "--count", "8", "--class", "rate_limited", "--retry-after", "30s")
    assert "outcome    a retry that spends no attempt" in output


def test_the_schedule_of_a_policy_is_a_timeline(tarry: typer.Typer) -> None:
    code, output = run(tarry, "--schedule", "--queue", "screenshots.jobs")
    assert code == 0
    assert [row.rstrip() for row in output.splitlines()[1:]] == [
        "screenshots: queue screenshots.*",
        "retry  waits  back after",
        "    1  5s     5s          ██",
        "    2  25s    30s         ··███████",
        "    3  2m 5s  2m 35s      ·········███████████████████████████████████████",
        "                          then manual-review.pending",
        "",
    ]


def test_the_schedule_as_data(tarry: typer.Typer) -> None:
    (found,) = answer(tarry, "--policy", "default")
    assert (found["policy"], found["max_retries"], found["max_retries_ceiling"]) == ("default", 3, 10)
    assert found["retries"][2] == {"retry": 3, "delay_ms": 8_000, "longest_jitter_ms": 1_000, "after_ms": 14_000}
    assert len(answer(tarry, "--schedule")) == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "error: Nothing to explain: give --queue, --message, --peek or --schedule."),
        (["--policy", "nope"], "error: There is no policy 'nope'. Known: email, runs, notify-critical"),
        (["--queue", "q", "--retry-after", "30"], "error: --retry-after `30`: use ms, s, m, h or d"),
        (["--message", "/nowhere/at/all"], "error: /nowhere/at/all does not contain a message"),
    ],
)
def test_mistakes_say_what_to_do(tarry: typer.Typer, arguments: list[str], message: str) -> None:
    code, output = run(tarry, *arguments)
    assert code == 2
    assert message in output


def test_a_lane_is_told_with_its_queues(tarry: typer.Typer, tmp_path: Path) -> None:
    (tmp_path / "tarry.toml").write_text(
        '[[policy]]\nname = "gold"\nschedule = ["8s"]\njitter = "125ms"\nmax_retries = 2\nlane = "critical"\n',
        encoding="utf-8",
    )
    found = json.loads(run_cli(["explain", "--topology", str(tmp_path), "--queue", "orders", "--json"]).output)
    assert found["lane"] == "critical"
    assert found["itinerary"][1] == ["retry.delay~critical.8s", "retry.ladder~critical.0.125ms"]
    shown = run_cli(["explain", "--topology", str(tmp_path), "--queue", "orders"]).output
    assert "lane       critical: only policies with this lane use these queues" in shown
    schedule = run_cli(["explain", "--topology", str(tmp_path), "--schedule"]).output
    assert "; lane critical" in schedule
