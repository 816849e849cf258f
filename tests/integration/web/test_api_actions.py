from __future__ import annotations

import json

import pytest
from typer.testing import Result

from tests.support.api import LOOK, OPERATE, ApiInstallation
from tests.support.cli import WIDE, run_cli

pytestmark = pytest.mark.one_series


def run(api: ApiInstallation, *words: str, through: bool, token: str = OPERATE) -> Result:
    direct = api.installation.environment | {"TARRY_API": "", "TARRY_TOKEN": ""}
    where = {"TARRY_API": api.url, "TARRY_TOKEN": token} if through else direct
    return run_cli(words, where | WIDE)


def cancelled(api: ApiInstallation, message: str, **said: str) -> str:
    retry = api.schedule("slow.actions", message)
    done = api.call("POST", f"/retries/{retry}/cancel", json=said)
    assert (done.status_code, done.json()["answer"]) == (200, "cancelled"), done.text
    return retry


def test_every_action_is_told_with_its_actor_and_its_outcome(api: ApiInstallation) -> None:
    retry = cancelled(api, "told-1", requested_by="alice", reason="because")
    again = api.call("POST", f"/retries/{retry}/cancel", headers={"X-Requested-By": "bob"}, json={})
    assert again.status_code in {400, 409}
    second, first = api.get("/actions", token=LOOK, params={"target": retry})["items"]
    assert (first["actor"], first["kind"], first["detail"]) == ("ops/alice", "cancel", {"reason": "because"})
    assert first["outcome"]["answer"] == "cancelled"
    assert first["finished"] >= first["at"]
    assert (second["actor"], second["outcome"]["error"]) == ("ops/bob", again.json()["detail"])


def test_the_log_is_walked_page_by_page(api: ApiInstallation) -> None:
    retries = [cancelled(api, f"walked-{number}", requested_by="walker") for number in range(5)]
    found: list[str] = []
    wanted = {"actor": "ops/walker", "kind": "cancel", "limit": "2"}
    while True:
        page = api.get("/actions", params=wanted)
        found += [one["target"] for one in page["items"]]
        if page["next"] is None:
            break
        wanted["cursor"] = page["next"]
    assert found == retries[::-1]


@pytest.mark.parametrize("through", [False, True], ids=["direct", "api"])
def test_the_command_shows_the_same_from_either_side(api: ApiInstallation, *, through: bool) -> None:
    retry = cancelled(api, f"shown-{through}", requested_by="alice", reason="it was wrong")
    shown = json.loads(run(api, "actions", "--target", retry, "--json", through=through).stdout)
    assert [(one["actor"], one["kind"], one["outcome"]["answer"]) for one in shown] == [
        ("ops/alice", "cancel", "cancelled")
    ]
    text = run(api, "actions", "--target", retry, through=through)
    assert "ops/alice" in text.stdout
    nothing = run(api, "actions", "--target", "nobody", through=through)
    assert (nothing.exit_code, nothing.stdout.strip()) == (0, "no matching actions")


def test_a_command_through_the_api_says_when_its_token_will_not_do(api: ApiInstallation) -> None:
    retry = api.schedule("slow.actions", "tokens-1")
    refused = run(api, "cancel", retry, through=True, token=LOOK)
    assert (refused.exit_code, "has the role look" in refused.stderr) == (1, True)
    refused = run(api, "cancel", retry, through=True, token="tarry_wrong")
    assert (refused.exit_code, "refused access" in refused.stderr) == (1, True)
    assert "tarry_wrong" not in refused.output
    assert api.get(f"/retries/{retry}")["state"] == "scheduled"
