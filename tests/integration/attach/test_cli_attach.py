from __future__ import annotations

import json
import secrets
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from tests.integration.attach.installation import AttachInstallation, Run
from tests.support.spaces import Vhost


def test_a_dry_run_shows_the_exact_policy_and_changes_nothing(installation: AttachInstallation, tarry: Run) -> None:
    installation.declare("orders")
    before = installation.everything()
    shown = tarry("attach", "orders", "--dry-run")
    assert shown.exit_code == 0
    assert installation.everything() == before
    (planned,) = json.loads(tarry("attach", "orders", "--dry-run", "--json").stdout)
    assert planned["status"] == "planned"
    assert json.dumps(planned["policy"]) in shown.stdout
    assert "binding retry.deliver ─~to:orders▶ queue orders" in shown.stdout

    done = json.loads(tarry("attach", "orders", "--json").stdout)

    assert done == [planned | {"status": "attached"}]
    live = {policy["name"]: policy for policy in installation.management.policies()}["tarry.orders"]
    assert {key: live[key] for key in planned["policy"]} == planned["policy"]


def test_a_glob_spares_tarrys_own_queues(installation: AttachInstallation, tarry: Run) -> None:
    for name in ("orders.a", "orders.b", "mail"):
        installation.declare(name, "classic")
    assert tarry("attach", "orders.*").exit_code == 0
    assert sorted(installation.attachments()) == ["orders.a", "orders.b"]
    assert tarry("attach", "*").exit_code == 0
    assert sorted(installation.attachments()) == ["mail", "orders.a", "orders.b"]


def test_a_refusal_is_exit_code_1_and_says_why(installation: AttachInstallation, tarry: Run) -> None:
    installation.declare("orders", x_dead_letter_exchange="elsewhere")
    refused = tarry("attach", "orders")
    assert refused.exit_code == 1
    assert "x-dead-letter-exchange='elsewhere' overrides any policy" in refused.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["attach"], "at least one QUEUE"),
        (["detach"], "at least one QUEUE"),
        (["attach", "nothing.*"], "No queue matches 'nothing.*'"),
        (["attach", "x", "--consumer-timeout", "30"], "use ms, s, m, h or d"),
    ],
)
def test_a_mistake_is_exit_code_2(tarry: Run, arguments: list[str], words: str) -> None:
    mistaken = tarry(*arguments)
    assert mistaken.exit_code == 2
    assert words in mistaken.stderr


def test_the_list_is_exit_code_1_when_something_has_drifted(installation: AttachInstallation, tarry: Run) -> None:
    assert "Nothing is attached" in tarry("attach", "--list").stderr
    installation.declare("orders")
    tarry("attach", "orders")
    assert tarry("attach", "--list").exit_code == 0
    installation.policy("team", "^orders$", max_length=5)
    drifted = tarry("attach", "--list")
    assert drifted.exit_code == 1
    assert "your policy 'team' would apply to it now" in drifted.stdout
    (state,) = json.loads(tarry("attach", "--list", "--json").stdout)
    assert (state["name"], state["kind"], state["state"]) == ("orders", "queue", "drifted")


@pytest.mark.usefixtures("_no_settling")
def test_detach_says_what_it_took_back(installation: AttachInstallation, tarry: Run) -> None:
    installation.declare("orders")
    tarry("attach", "orders")
    planned = tarry("detach", "orders", "--dry-run")
    assert "would be detached" in planned.stdout
    assert "orders" in installation.attachments()
    (done,) = json.loads(tarry("detach", "orders", "--json").stdout)
    assert (done["status"], done["kept"]) == ("detached", [])
    assert "policy tarry.orders" in done["removed"]
    assert installation.attachments() == {}
    assert "was not attached" in tarry("detach", "orders").stdout


def test_a_vhost_that_needs_escaping_works(vhost: Vhost, tmp_path: Path) -> None:
    name = f"a/b c%{secrets.token_hex(4)}"
    path = quote(name, safe="")
    user = urlsplit(vhost.management_url).username
    vhost.api(f"vhosts/{path}", method="PUT", body={})
    try:
        rights = {"configure": ".*", "write": ".*", "read": ".*"}
        vhost.api(f"permissions/{path}/{user}", method="PUT", body=rights)
        url = urlsplit(vhost.amqp_url)._replace(path=f"/{path}").geturl()
        with closing(AttachInstallation(url, vhost.management_url, "", tmp_path / "topology").apply()) as installation:
            installation.declare("a b/c%")
            assert installation.tarry("attach", "a b/c%").exit_code == 0
            installation.publish("a b/c%")
            installation.reject("a b/c%")
            installation.take("retry.scheduled")
    finally:
        vhost.api(f"vhosts/{path}", method="DELETE")
