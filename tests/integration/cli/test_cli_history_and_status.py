from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import Result

from tarry.amqp.declare import channel
from tarry.amqp.management import Management
from tarry.amqp.url import Address
from tarry.attach.apply import AttachRequest, attach
from tarry.core.states import Note
from tarry.topology.apply import apply
from tarry.topology.load import load
from tests.support.audit_store import AuditStore, id_of, request
from tests.support.cli import run_cli
from tests.support.spaces import Vhost
from tests.support.waiting import wait_for

M = id_of("m")
FILES = """
[ladder]
levels = 3

[[policy]]
name = "default"
schedule = ["10s"]
max_retries = 2
"""


def run(store: AuditStore, *arguments: str, **environment: str) -> Result:
    return run_cli(arguments, {"DATABASE_URL": store.dsn, **environment})


@pytest.fixture
def twice_tried(store: AuditStore) -> AuditStore:
    store.claim(request("m"))
    store.schedule(M, 1, due_in_ms=-10, tier="retry.delay.10s", error_type="Timeout", error_reason="after 30 s")
    store.see(M, 1, drift=12)
    store.claim(request("m", round_=1, count=1))
    store.schedule(M, 2, count=2, tier="retry.delay.10s", max_retries=2, policy="default", message_id="m")
    store.do(store.one.note([(M, 2)], Note.DUPLICATE, "the same request was delivered again"))
    return store


def test_the_history_of_a_message_is_found_by_either_id(twice_tried: AuditStore) -> None:
    for called in ("m", M, M.upper()):
        shown = run(twice_tried, "history", called)
        assert shown.exit_code == 0
        assert "m in orders: scheduled, round 2" in shown.stdout
        assert "2 of 2 retries" in shown.stdout
        assert "last error Timeout: after 30 s" in shown.stdout
        assert "12 ms" in shown.stdout
        assert "retry.delay.10s for 1m, attempt 2, by one" in shown.stdout
        assert "the same request was delivered again, by one" in shown.stdout


def test_the_history_as_json_has_every_step(twice_tried: AuditStore) -> None:
    shown = json.loads(run(twice_tried, "history", "m", "--json").stdout)
    assert [(one["retry_id"], one["queue"], one["round"]) for one in shown] == [(M, "orders", 2)]
    steps = [(step["round"], step["state"]) for step in shown[0]["steps"]]
    expected = [(1, "claimed"), (1, "scheduled"), (1, "returned"), (2, "claimed"), (2, "scheduled"), (2, "duplicate")]
    assert steps == expected


def test_an_unknown_id_is_an_error_that_says_where_to_look(store: AuditStore) -> None:
    shown = run(store, "history", "nobody")
    assert shown.exit_code == 4
    assert "Nothing is known of 'nobody'" in shown.stderr
    assert "tarry-id" in shown.stderr


def test_the_status_shows_both_sides(twice_tried: AuditStore, vhost: Vhost, tmp_path: Path) -> None:
    where = _installed(vhost, tmp_path)
    with channel(Address.parse(vhost.amqp_url), "test") as opened:
        opened.queue_declare("manual-review.pending", passive=True)
        opened.basic_publish("retry.review", "", b"x")

    def seen() -> bool:
        shown = json.loads(run(twice_tried, "status", "--json", **where).stdout)
        assert shown["audit"] == {
            "waiting": 1,
            "due_in_a_minute": 1,
            "due_in_an_hour": 1,
            "in_review": 0,
            "held": 0,
            "unroutable": 0,
            "claimed": 0,
            "overdue": 0,
            "due": 0,
            "skipped_in_a_day": 0,
        }
        assert [(one["tier"], one["open"], one["depth"]) for one in shown["tiers"]] == [("retry.delay.10s", 1, 0)]
        return bool(shown["queues"]["manual-review.pending"] == 1)

    wait_for(seen, what="the message in review to show")
    shown = run(twice_tried, "status", **where)
    assert shown.exit_code == 0
    assert "waiting 1: due in the next minute 1, in the next hour 1" in shown.stdout
    assert "overdue 0" in shown.stdout


def test_the_status_shows_what_can_be_had(twice_tried: AuditStore, vhost: Vhost, tmp_path: Path) -> None:
    where = _installed(vhost, tmp_path) | {"RABBITMQ_MANAGEMENT_URL": "http://127.0.0.1:1"}
    shown = run(twice_tried, "status", **where)
    assert shown.exit_code == 1
    assert "waiting 1" in shown.stdout
    assert "No answer from the management API" in shown.stderr
    where = _installed(vhost, tmp_path) | {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
    shown = run(twice_tried, "status", **where)
    assert shown.exit_code == 1
    assert "retry.scheduled" in shown.stdout
    assert "Postgres does not answer" in shown.stderr


def test_status_tells_an_attachment_that_is_not_in_effect(store: AuditStore, vhost: Vhost, tmp_path: Path) -> None:
    where = _installed(vhost, tmp_path)
    address = Address.parse(vhost.amqp_url, management_url=vhost.management_url)
    with channel(address, "test") as opened:
        opened.queue_declare("orders", durable=True, arguments={"x-queue-type": "quorum"})
        opened.queue_declare("mail", durable=True, arguments={"x-queue-type": "quorum"})
    attach(load(tmp_path), address, AttachRequest(["orders", "mail"]))
    assert "✓ attached 2, all in effect" in run(store, "status", **where).stdout
    Management(address).delete_policy("tarry.orders")
    shown = run(store, "status", **where)
    assert shown.exit_code == 0
    assert "✗ queue orders: policy gone: policy tarry.orders does not exist; run: tarry attach orders" in shown.stdout
    told = json.loads(run(store, "status", "--json", **where).stdout)["attachments"]
    assert {one["name"]: one["state"] for one in told} == {"mail": "ok", "orders": "policy gone"}


def test_the_commands_say_what_is_wrong_with_a_duration_and_a_moment(store: AuditStore) -> None:
    for arguments, said in (
        (("audit", "prune", "--older-than", "a month"), "--older-than `a month`: use ms, s, m, h or d"),
        (("audit", "verify", "--since", "yesterday"), "--since `yesterday`: use a duration such as 1h"),
        (("audit", "verify", "--grace", "30"), "--grace `30`"),
        (("audit", "verify", "--grace", "99999999999999d"), "longer than a hundred years"),
        (("audit", "verify", "--since", "9999999d"), "--since `9999999d`: longer than a hundred years"),
    ):
        shown = run(store, *arguments)
        assert (shown.exit_code, said in shown.stderr) == (2, True), shown.stderr


def test_prune_and_migrate_tell_what_they_did(twice_tried: AuditStore) -> None:
    twice_tried.see(M, 2)
    twice_tried.age(M, 40 * 86_400)
    shown = json.loads(run(twice_tried, "audit", "prune", "--older-than", "30d", "--json").stdout)
    assert shown == {"partitions": [], "history": 0, "retries": 1, "payloads": 0, "actions": 0, "charges": 0}
    assert run(twice_tried, "audit", "migrate").stdout.strip() == "nothing to do: the tables are up to date"


def test_the_balance_can_be_of_one_queue_or_of_late(twice_tried: AuditStore) -> None:
    with_all = twice_tried.balance()
    assert (with_all.requests, with_all.returned, with_all.waiting, with_all.duplicates) == (3, 1, 1, 1)
    shown = json.loads(run(twice_tried, "audit", "balance", "--json").stdout)["balance"]
    assert (shown["requests"], shown["lost"]) == (3, 0)


def _installed(vhost: Vhost, folder: Path) -> dict[str, str]:
    (folder / "tarry.toml").write_text(FILES, encoding="utf-8")
    apply(load(folder), Address.parse(vhost.amqp_url, management_url=vhost.management_url))
    return {
        "RABBITMQ_URL": vhost.amqp_url,
        "RABBITMQ_MANAGEMENT_URL": vhost.management_url,
        "TARRY_TOPOLOGY": str(folder),
    }
