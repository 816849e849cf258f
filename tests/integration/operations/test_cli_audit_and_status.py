"""`status`, `history` and `audit` straight on broker and Postgres, or through the API: the same answers."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.integration.operations.terminal import Terminal
from tests.support.api import LOOK, ApiInstallation

pytestmark = pytest.mark.one_series

QUICKLY = ("--grace", "1s", "--settle", "1s", "--patience", "0s")


def _name(terminal: Terminal, name: str) -> str:
    return f"{name}-{'api' if terminal.remote else 'direct'}"


def test_status_has_tiers_counts_and_the_topology(terminal: Terminal) -> None:
    terminal.api.schedule("slow.status", _name(terminal, "status"))
    found = terminal.json("status")
    assert (found["audit"]["waiting"] > 0, found["troubles"], len(found["topology"]["digest"])) == (True, [], 64)
    assert [one for one in found["tiers"] if one["open"]]
    shown = terminal.run("status")
    assert (shown.exit_code, "Topology: " in shown.stdout, "overdue 0" in shown.stdout) == (0, True, True)


def test_history_is_found_by_message_id(terminal: Terminal) -> None:
    message = _name(terminal, "history")
    retry = terminal.api.schedule("slow.history", message)
    [found] = terminal.json("history", message)
    assert (found["retry_id"], [step["state"] for step in found["steps"]]) == (retry, ["claimed", "scheduled"])
    assert message in terminal.run("history", retry[:9]).stdout
    unknown = terminal.run("history", "nobody")
    assert (unknown.exit_code, "Nothing is known of 'nobody'" in unknown.stderr) == (4, True)


def test_audit_verifies_and_balances(terminal: Terminal) -> None:
    terminal.api.schedule("slow.verified", _name(terminal, "verified"))
    assert terminal.json("audit", "balance")["balance"]["lost"] == 0
    found = terminal.json("audit", "verify")
    assert (found["ok"], found["missing"], found["shortages"]) == (True, [], [])
    assert "nothing is missing" in terminal.run("audit", "verify").stdout
    wrong = terminal.run("audit", "verify", "--grace", "soon")
    assert (wrong.exit_code, "--grace" in wrong.stderr) == (2, True)


def test_audit_recovers_or_writes_off_what_is_missing(terminal: Terminal) -> None:
    retry = terminal.api.schedule("slow.lost", _name(terminal, "lost"))
    other = terminal.api.schedule("slow.lost", _name(terminal, "written-off"))
    with psycopg.connect(terminal.api.installation.dsn, autocommit=True) as connection:
        # As if each had come due long ago: the broker has neither, as far as the audit can tell.
        for one in (retry, other):
            connection.execute(
                "update retry set due_at = now() - interval '1 hour', expected_at = now() - interval '1 hour',"
                " entered_at = now() - interval '2 hours', tier = 'retry.delay.gone' where id = %s",
                [one],
            )
    looked = terminal.json("audit", "recover", *QUICKLY)
    assert {retry, other} <= {one["retry_id"] for one in looked["missing"]}
    assert looked["done"] is False
    written = terminal.json("audit", "write-off", other[:9], "--reason", "sold", "--yes", *QUICKLY)
    assert written["written_off"] == [other]
    done = terminal.json("audit", "recover", "--yes", *QUICKLY)
    assert (done["done"], done["sent"]) == (True, 1)
    steps = terminal.api.get(f"/retries/{retry}")["steps"]
    [recovered] = [step for step in steps if step["state"] == "recovered"]
    assert recovered["actor"].startswith("ops/") is terminal.remote
    assert terminal.api.get(f"/retries/{other}")["steps"][-1]["reason"] == "sold"
    terminal.api.wait_state(retry, "returned")


def test_what_is_not_missing_is_not_written_off(terminal: Terminal) -> None:
    retry = terminal.api.schedule("slow.there", _name(terminal, "not missing"))
    refused = terminal.run("audit", "write-off", retry, "--reason", "x", "--yes", "--json", *QUICKLY)
    assert (refused.exit_code, json.loads(refused.stdout)["code"]) == (6, "invalid_state")
    assert f"Not missing: {retry}" in refused.stderr


def test_audit_is_read_with_the_role_look_and_changed_with_operate(api: ApiInstallation) -> None:
    assert api.get("/audit/verify", token=LOOK, params={"patience": "0s"})["ok"] in (True, False)
    assert api.get("/audit/balance", token=LOOK)["balance"]["waiting"] >= 0
    for path in ("/audit/recover", "/audit/write-off"):
        assert api.call("POST", path, token=LOOK, json={"reason": "x"}).status_code == 403
    assert api.call("GET", "/audit/verify", params={"grace": "soon"}).status_code == 422
    assert api.call("POST", "/audit/write-off", json={"reason": ""}).status_code == 422
