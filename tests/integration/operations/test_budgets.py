"""Budgets as operators see them: commands, explain, history, metrics, and what happens without Postgres."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.integration.operations.terminal import Terminal
from tests.support.api import LOOK, TOKENS, ApiInstallation, api_installation
from tests.support.cli import run_cli
from tests.support.installation import Installation
from tests.support.router import routers
from tests.support.services import Services
from tests.support.spaces import Database, SharedBroker, Vhost
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series

POLICIES = """
[ladder]
levels = 4

[[policy]]
name = "deferring"
match = { queue = "slow.*" }
schedule = ["5m"]
max_retries = 3
budget = [
  { per = "owner", limit = 2, every = "1d", spread = "15m" },
  { per = "policy", limit = 1000, every = "1mo", over = "review" },
]

[[policy]]
name = "skipping"
match = { queue = "skip.*" }
schedule = ["5m"]
max_retries = 3
cost = 3
budget = { per = "queue", limit = 4, every = "1mo", over = "skip", unit = "cost" }

[[policy]]
name = "plain"
schedule = ["5m"]
max_retries = 3
"""


@pytest.fixture(scope="module")
def api(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiInstallation]:
    """One service for this file."""
    folder = tmp_path_factory.mktemp("budgets")
    (folder / "topology").mkdir()
    (folder / "topology" / "tarry.toml").write_text(POLICIES)
    with api_installation(broker, services, folder, **TOKENS) as made:
        yield made


def midnight(days: int) -> datetime:
    """The beginning of the day in which a retry of now comes due, and so many days later."""
    due = datetime.now(UTC) + timedelta(minutes=5)
    return due.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=days)


def test_a_retry_over_its_budget_is_deferred_and_its_history_says_why(api: ApiInstallation) -> None:
    for name in ("one", "two"):
        api.schedule("slow.orders", f"deferred-{name}", owner="hist")
    retry = api.schedule("slow.orders", "deferred-three", owner="hist")
    found = api.get(f"/retries/{retry}")
    due = datetime.fromisoformat(found["due"])
    assert midnight(1) <= due < midnight(1) + timedelta(minutes=15, seconds=1)
    (step,) = [one for one in found["steps"] if one["state"] == "scheduled"]
    assert step["reason"].startswith("deferred from ")
    assert step["reason"].endswith(" UTC: over its budget of 2 retries per owner and day (UTC)")
    assert (step["detail"]["budget"], step["detail"]["owner"]) == ("2 retries per owner and day (UTC)", "hist")
    before = datetime.fromtimestamp(step["detail"]["deferred_from_ms"] / 1000, UTC)
    assert timedelta(minutes=4) < before - datetime.fromisoformat(found["steps"][0]["at"]) < timedelta(minutes=6)
    shown = run_cli(["history", retry], api.installation.environment | {"COLUMNS": "300"}).output
    assert "over its budget of 2 retries per owner and day (UTC)" in shown
    assert api.router.metric("tarry_budget_total", policy="deferring", outcome="defer") >= 1


def test_a_retry_over_a_budget_of_cost_is_skipped(api: ApiInstallation) -> None:
    api.schedule("skip.orders", "kept")
    api.installation.request("skip.orders", "skipped")
    retry = api.installation.retry_of("skipped")
    api.wait_state(retry, "skipped")
    step = api.get(f"/retries/{retry}")["steps"][-1]
    assert step["reason"] == "over its budget of 4 of cost per queue and month (UTC)"
    assert step["detail"]["budget"] == "4 of cost per queue and month (UTC)"


def test_exceptions_are_set_listed_with_their_use_and_unset(terminal: Terminal) -> None:
    owner = f"acme-{'api' if terminal.remote else 'direct'}"
    given = ["--owner", owner, "--daily", "3", "--reason", "paid more", "--requested-by", "ann"]
    done = terminal.run("budget", "set", *given)
    assert (done.exit_code, done.stdout) == (0, f"✓ {owner}: 3 a day\n")
    more = terminal.json("budget", "set", "--owner", owner, "--monthly", "9", "--max-retries", "5")
    assert {key: more["exception"][key] for key in ("daily", "hourly", "monthly", "max_retries", "reason")} == {
        "daily": 3,
        "hourly": None,
        "monthly": 9,
        "max_retries": 5,
        "reason": None,
    }
    assert more["without_effect"] == ["--monthly: no policy has a budget per owner and month"]
    for number in range(4):
        terminal.api.schedule("slow.orders", f"{owner}-{number}", owner=owner)
    found = terminal.json("budget", "list", "--owner", owner, "--policy", "deferring")
    (use,) = found["uses"]
    today = datetime.now(UTC).date() == midnight(0).date()
    assert (use["subject"], use["limit"], use["over"]) == (owner, 3, "defer")
    assert (use["used"], use["used_in_next"], use["used_later"]) == ((3, 1, 1) if today else (0, 3, 4))
    assert (found["exceptions"][0]["owner"], found["exceptions"][0]["actor"] != "") == (owner, True)
    shown = terminal.run("budget", "list", "--owner", owner).stdout
    assert f"{owner}" in shown
    assert "3 a day, 9 a month, at most 5 retries of a message" in shown
    assert terminal.run("budget", "unset", "--owner", owner).exit_code == 0
    assert terminal.json("budget", "list", "--owner", owner)["exceptions"] == []
    kinds = [one["kind"] for one in terminal.json("actions", "--target", owner)]
    assert kinds == ["unset_budget", "set_budget", "set_budget"]


def test_what_is_wrong_is_refused_and_changes_nothing(terminal: Terminal) -> None:
    nothing = terminal.run("budget", "set", "--owner", "odd")
    assert nothing.exit_code == 2
    assert "--max-retries" in nothing.stderr
    policy = terminal.run("budget", "set", "--owner", "odd", "--daily", "5", "--policy", "defering")
    assert (policy.exit_code, "There is no policy 'defering'" in policy.stderr) == (4, True)
    assert terminal.run("budget", "unset", "--owner", "odd").exit_code == 4
    assert terminal.run("budget", "set", "--owner", "odd", "--daily", "-1").exit_code == 2
    assert terminal.run("budget", "list", "--policy", "defering").exit_code == 4
    assert terminal.json("budget", "list", "--owner", "odd") == {"exceptions": [], "uses": []}
    assert terminal.api.call("POST", "/budgets/odd/set", json={"daily": 5}, token=LOOK).status_code == 403
    assert terminal.api.call("GET", "/budgets", token=LOOK).status_code == 200


def test_a_limited_owner_is_exhausted_earlier_in_that_policy_only(api: ApiInstallation) -> None:
    assert api.call("POST", "/budgets/capped/set", json={"max_retries": 1, "policy": "plain"}).status_code == 200

    def explained(queue: str) -> str:
        some = {"properties": {"headers": {"original_queue": queue, "owner": "capped", "retry_count": 1}}}
        answer = api.call("POST", "/explain", json={"messages": [some]}).json()
        return str(answer[0]["outcome"])

    assert (explained("orders"), explained("slow.orders")) == ("review", "schedule")

    def exhausted() -> bool:
        """The router reads the caps every second."""
        number = api.installation.number("select count(*) from retry where message_id like 'capped-%%'")
        name = f"capped-{number}"
        api.installation.request("orders", name, owner="capped", retry_count=1)
        retry = api.installation.retry_of(name)
        return bool(api.get(f"/retries/{retry}")["state"] == "in_review")

    api.installation.declare("orders")
    wait_for(exhausted, what="the router to know the cap")
    reason = api.rows("select review_reason from retry where state = 'in_review' and message_id like 'capped-%'")[0][0]
    assert reason == "exhausted: 1 of 1 retries spent"


def test_explain_shows_the_budget_and_what_would_happen(api: ApiInstallation) -> None:
    for name in ("one", "two"):
        api.schedule("slow.orders", f"explained-{name}", owner="expl")
    words = ["explain", "--queue", "slow.orders", "--owner", "expl"]
    remote = [*words, "--api", api.url, "--token", str(api.token)]
    used = "select sum(used) from budget_use where subject = 'expl'"
    before = api.installation.number(used)
    found = json.loads(run_cli([*remote, "--json"], api.installation.environment).stdout)
    owner, policy = found["budgets"]
    assert (owner["budget"], owner["subject"], owner["used"], owner["limit"]) == (
        *("2 retries per owner and day (UTC)", "expl"),
        *(2, 2),
    )
    assert (policy["subject"], policy["limit"], policy["over"]) == ("", 1000, "review")
    assert found["budget_why"].startswith("no room in 2 retries per owner and day (UTC): deferred to the first later")
    assert found["outcome"] == "schedule"
    assert midnight(1) <= datetime.fromisoformat(found["due"][0]) < midnight(1) + timedelta(seconds=1)
    assert "2 of 2 used of 'expl'" in run_cli(remote, api.installation.environment).stdout
    assert api.installation.number(used) == before

    here = json.loads(run_cli([*words, "--json"], api.installation.environment).stdout)
    assert (here["budgets"][0]["used"], here["budget_why"]) == (
        None,
        "what is used is not known here: with --api the service is asked",
    )
    assert (
        "At most 2 retries per owner and day (UTC), over it: defer."
        in run_cli(["explain", "--schedule", "--policy", "deferring"], api.installation.environment).stdout
    )


def test_explain_says_that_a_message_would_be_skipped(api: ApiInstallation) -> None:
    api.schedule("skip.more", "more")
    some = {"properties": {"headers": {"original_queue": "skip.more"}}}
    (found,) = api.call("POST", "/explain", json={"messages": [some]}).json()
    assert (found["outcome"], found["reason"]) == ("skip", "over its budget of 4 of cost per queue and month (UTC)")


def test_without_postgres_budgets_are_not_applied_and_health_says_so(
    vhost: Vhost, database: Database, tmp_path: Path
) -> None:
    installation = Installation(vhost.amqp_url, vhost.management_url, database.dsn, tmp_path / "t", POLICIES).apply()
    installation.declare("slow.orders")
    with routers(installation) as start:
        router = start(DATABASE_URL="postgresql://nobody@127.0.0.1:9/nothing")
        for name in range(4):
            installation.request("slow.orders", f"m-{name}", owner="acme")
        wait_for(
            lambda: router.metric("tarry_budget_total", policy="deferring", outcome="unapplied") == 4,
            deadline=60,
            what="all to be scheduled without a charge",
        )
        assert len(router.logged("budgets are not applied")) == 1
        status, reasons = router.ready()
        said = "budgets are not applied while Postgres is unavailable: retries of deferring, skipping are scheduled"
        assert (status, any(said in one for one in reasons)) == (200, True)
        wait_for(lambda: installation.depth("retry.delay.5m") == 4, what="all of them to wait")
        nowhere = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:9/nothing"}
        shown = run_cli(["status"], installation.environment | nowhere)
        assert (shown.exit_code, "Budgets are not applied while Postgres" in shown.output) == (1, True)
    installation.close()
