"""Webhooks in a topology: validation, the queue of each, its bindings, rights, and what is left when one is gone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tarry.core.names import event_key
from tarry.errors import TopologyError
from tarry.events.cloudevent import EventType
from tarry.topology.blueprint import blueprint
from tarry.topology.definitions import definitions
from tarry.topology.load import load
from tarry.topology.objects import Binding
from tarry.topology.plan import make_plan
from tarry.topology.retire import prunable, reasons_to_keep
from tarry.topology.rights import deploy_rights, router_rights
from tarry.topology.verify import findings
from tarry.topology.webhooks import STATES, Webhook
from tests.unit.topology import examples

ON = {"enabled": True}
HOOK = {"name": "billing", "url": "https://example.com/hook", "secret_env": "SECRET", "events": ["exhausted"]}
QUEUE = "tarry-webhooks.retry.billing"
EXPECTED = examples.expected(events=ON, webhook=[HOOK])
STANDING = examples.live(EXPECTED.blueprint)
WITHOUT = examples.expected(events=ON)

FILE = """
[events]
enabled = true

[[webhook]]
name = "billing"
url = "https://example.com/hook"
secret_env = "SECRET"
events = ["exhausted"]

[[policy]]
name = "default"
schedule = ["1s"]
max_retries = 1
"""


def hook(**changes: Any) -> Webhook:
    return Webhook.model_validate(HOOK | changes)


def written(folder: Path, text: str) -> Path:
    (folder / "tarry.toml").write_text(text, encoding="utf-8")
    return folder


def test_a_webhook_has_a_queue_that_tarry_retries_outside_its_prefix() -> None:
    queue = next(queue for queue in EXPECTED.blueprint.queues if queue.name == QUEUE)

    assert queue.arguments.as_dict() == {
        "x-queue-type": "quorum",
        "x-delivery-limit": 1_000_000,
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "retry.intake",
        "x-dead-letter-strategy": "at-least-once",
        "x-single-active-consumer": True,
    }
    names = {queue.name for queue in EXPECTED.blueprint.queues}
    assert {f"retry.relay.{QUEUE}", f"retry.held.{QUEUE}"} <= names
    assert Binding("retry.deliver", f"~to:{QUEUE}", QUEUE) in EXPECTED.blueprint.bindings
    assert Binding("retry.relay", f"~to:{QUEUE}", f"retry.relay.{QUEUE}") in EXPECTED.blueprint.bindings


def test_the_queue_of_a_webhook_is_in_the_definitions_and_verified() -> None:
    made = definitions(examples.topology(events=ON, webhook=[HOOK]))

    assert QUEUE in {queue["name"] for queue in made["queues"]}
    assert findings(EXPECTED, STANDING) == []
    assert [str(one) for one in findings(EXPECTED, examples.without_queue(STANDING, QUEUE)) if QUEUE in str(one)]


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({}, ["in_review.#"]),
        ({"events": ["exhausted", "in_review", "paused"]}, ["in_review.#", "paused.#"]),
        ({"queues": ["orders.*"]}, ["in_review.*.orders.#"]),
        ({"queues": ["orders.eu"]}, ["in_review.*.orders.eu"]),
        ({"queues": ["ord*", "x"]}, ["in_review.#", "in_review.*.x"]),
        ({"queues": ["orders.*", "*"]}, ["in_review.#"]),
    ],
)
def test_it_is_bound_by_state_and_queue(changes: dict[str, Any], keys: list[str]) -> None:
    assert sorted(hook(**changes).binding_keys()) == keys


def test_a_long_queue_name_is_bound_by_its_hash_too() -> None:
    queue = "q" * 200
    key = event_key("in_review", "p" * 63, queue)

    assert "~" in key
    assert any(re.fullmatch(one.replace(".*.", r"\.[^.]+\."), key) for one in hook(queues=[queue]).binding_keys())


def test_every_type_of_event_can_be_chosen() -> None:
    assert set(STATES) == {str(one.word) for one in EventType}


@pytest.mark.parametrize(
    ("word", "queue", "wanted"),
    [
        ("exhausted", "orders.eu", True),
        ("in_review", "orders.eu", False),
        ("exhausted", "other", False),
        ("exhausted", None, False),
        ("exhausted", QUEUE, False),
    ],
)
def test_it_wants_its_types_about_its_queues(word: str, queue: str | None, wanted: bool) -> None:  # noqa: FBT001 - a table
    assert hook(queues=["orders.*"]).wants(word, queue) is wanted


def test_no_webhook_is_told_of_the_retries_of_webhooks() -> None:
    everything = hook(events=["*"])

    assert not everything.wants("exhausted", QUEUE)
    assert everything.wants("paused", None)
    assert event_key("in_review", "webhooks", QUEUE).partition(".")[0] not in {
        key.partition(".")[0] for key in everything.binding_keys()
    }


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"events": ["exhaused"]}, "`exhaused` is no type of event; did you mean `exhausted`?"),
        ({"events": []}, "at least 1 item"),
        ({"url": "ftp://example.com"}, "write http://host/path or https://host/path"),
        ({"url_env": "URL"}, "give either `url` or `url_env`"),
        ({"name": "a.b"}, "should match pattern"),
        ({"rate": 0}, "greater than or equal to 1"),
        ({"secret": "whsec_x"}, "Extra inputs"),
    ],
)
def test_a_wrong_webhook_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(problem)):
        hook(**changes)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"webhook": [HOOK]}, "events are off: set `enabled = true` under [events]"),
        ({"webhook": [HOOK, HOOK], "events": ON}, "2 webhooks have this name"),
        ({"webhook": [HOOK], "events": ON, "names": {"prefix": "tarry-"}}, "choose another"),
    ],
)
def test_webhooks_that_cannot_work_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(problem)):
        examples.topology(**changes)


def test_a_mistake_is_reported_with_its_file_and_line(tmp_path: Path) -> None:
    folder = written(tmp_path, FILE.replace('["exhausted"]', '["exhausted", "review"]'))

    with pytest.raises(TopologyError, match=r"tarry\.toml:9: webhook, entry 1, events, entry 2: .*no type of event"):
        load(folder)


def test_events_that_are_off_are_reported_with_the_remedy(tmp_path: Path) -> None:
    folder = written(tmp_path, FILE.replace("enabled = true", "enabled = false"))

    with pytest.raises(TopologyError, match=r"webhooks are told of events, and events are off: set `enabled = true`"):
        load(folder)


def test_the_shipped_policy_comes_first_if_there_are_webhooks(tmp_path: Path) -> None:
    made = load(written(tmp_path, FILE))

    assert [policy.name for policy in made.policies] == ["webhooks", "default"]
    assert made.policy_label(0).endswith("topology/webhooks/policy.toml)")
    assert made.policies[0].match.fits(QUEUE, None, None)
    assert max(made.policies[0].schedule or ()) == 6 * 3_600_000


def test_without_webhooks_the_shipped_policy_is_not_used(tmp_path: Path) -> None:
    text = FILE.replace("[[webhook]]", "[[policy]]").replace(
        'url = "https://example.com/hook"\nsecret_env = "SECRET"\n', ""
    )
    made = load(written(tmp_path, text.replace('events = ["exhausted"]', 'schedule = ["2s"]\nmax_retries = 1')))

    assert [policy.name for policy in made.policies] == ["billing", "default"]


def test_a_policy_called_webhooks_replaces_the_shipped_one(tmp_path: Path) -> None:
    made = load(written(tmp_path, FILE.replace('"default"', '"webhooks"')))

    assert [policy.name for policy in made.policies] == ["webhooks"]
    assert made.policies[0].schedule == (1_000,)


def test_a_policy_that_names_a_webhooks_queue_comes_before_the_shipped_one(tmp_path: Path) -> None:
    own = f'[[policy]]\nname = "own"\nmatch = {{queue = "{QUEUE}"}}\nschedule = ["2s"]\nmax_retries = 1\n'
    before, after = FILE.replace("[[policy]]", f"{own}\n[[policy]]"), f"{FILE}\n{own}"

    assert [policy.name for policy in load(written(tmp_path, before)).policies] == ["own", "webhooks", "default"]
    assert [policy.name for policy in load(written(tmp_path, after)).policies] == ["webhooks", "default", "own"]


def test_narrow_destinations_do_not_exclude_the_queues_of_webhooks() -> None:
    made = examples.topology(events=ON, webhook=[HOOK], destinations=["orders.*"])
    rights = router_rights(made)

    assert made.acceptable == ("orders.*", QUEUE)
    assert re.search(rights.write, QUEUE)
    assert re.search(rights.read, QUEUE)
    assert re.search(rights.write, "retry.intake")
    assert re.search(rights.write, "retry.reports")
    assert re.search(deploy_rights(made).configure, QUEUE)


def test_apply_unbinds_events_that_a_webhook_does_not_want_any_more() -> None:
    changed = examples.expected(events=ON, webhook=[HOOK | {"events": ["missing"]}])
    plan = make_plan(changed.names, changed.blueprint, STANDING)

    assert plan.missing.bindings == (Binding("retry.events", "missing.#", QUEUE),)
    assert plan.former == (Binding("retry.events", "in_review.#", QUEUE),)
    assert plan.left_over == ()


def test_the_queue_of_a_webhook_that_is_gone_is_left_over() -> None:
    plan = make_plan(WITHOUT.names, WITHOUT.blueprint, STANDING)

    assert [part.name for part in plan.left_over] == [QUEUE]
    assert plan.former == (Binding("retry.events", "in_review.#", QUEUE),)
    assert {one.level for one in findings(WITHOUT, STANDING)} == {"note"}


def test_prune_removes_the_queues_of_a_webhook_that_is_gone() -> None:
    unbound = examples.without_binding(STANDING, Binding("retry.events", "in_review.#", QUEUE))

    assert reasons_to_keep(WITHOUT, STANDING) == {QUEUE: "still bound to retry.events: tarry topology apply"}
    assert prunable(WITHOUT, unbound) == [QUEUE, f"retry.relay.{QUEUE}", f"retry.held.{QUEUE}"]


def test_prune_keeps_deliveries_that_wait() -> None:
    unbound = examples.without_binding(STANDING, Binding("retry.events", "in_review.#", QUEUE))
    full = replace(unbound, depths={f"retry.held.{QUEUE}": 3})

    assert prunable(WITHOUT, full) == []
    (reason,) = reasons_to_keep(WITHOUT, full).values()
    assert reason is not None
    assert "still holds 3 messages: put the webhook back" in reason


def test_webhooks_of_another_installation_are_not_left_over() -> None:
    other = examples.expected(names={"prefix": "other."})

    assert make_plan(other.names, blueprint(other.topology), STANDING).left_over == ()
