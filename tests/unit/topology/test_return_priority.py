"""Which queues honour a return priority, by type and broker series, and what verify and attach say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tarry.attach.findings import Level
from tarry.attach.merge import MergeOptions
from tarry.attach.plan import plan_queue
from tarry.core.names import Destination
from tarry.core.policy import Policy
from tarry.topology.findings import Finding
from tarry.topology.objects import Arguments, Binding, Queue
from tarry.topology.return_priority import PriorityLevels, levels_of, return_priorities
from tarry.topology.verify import findings
from tests.unit.attach.snapshots import FAILURES, a_queue, a_snapshot
from tests.unit.topology import examples

ELSEWHERE = "use a quorum queue on RabbitMQ 4.3, or a classic queue with x-max-priority"


def policy(name: str = "first", returned: int | None = 5, **match: str) -> Policy:
    given = {"name": name, "match": match, "schedule": ["2s"], "max_retries": 2, "return_priority": returned}
    return Policy.model_validate(given)


@pytest.mark.parametrize(
    ("kind", "most", "version", "levels"),
    [
        ("quorum", None, (3, 10, 8), None),
        ("quorum", None, (3, 13, 7), None),
        ("quorum", None, (4, 0, 5), PriorityLevels(5, without=4, lowest=4)),
        ("quorum", None, (4, 2, 0), PriorityLevels(5, without=4, lowest=4)),
        ("quorum", None, (4, 3, 6), PriorityLevels(31, without=4)),
        ("classic", None, (4, 3, 6), None),
        ("classic", 10, (3, 10, 8), PriorityLevels(10, without=0)),
        ("classic", 1, (4, 3, 6), PriorityLevels(1, without=0)),
        ("stream", None, (4, 3, 6), None),
    ],
)
def test_return_priority_levels(
    kind: str, most: int | None, version: tuple[int, ...], levels: PriorityLevels | None
) -> None:
    assert levels_of(kind, most, version) == levels


@pytest.mark.parametrize(
    ("priority", "kind", "most", "version", "works", "text"),
    [
        (5, "quorum", None, (3, 10, 8), False, "a quorum queue of RabbitMQ 3.10 ignores priorities"),
        (5, "classic", None, (3, 10, 8), False, "a classic queue without x-max-priority ignores priorities"),
        (5, "quorum", None, (4, 1, 0), True, "retries are delivered before messages without a priority"),
        (9, "quorum", None, (4, 1, 0), True, "retries are delivered before messages without a priority"),
        (3, "quorum", None, (4, 1, 0), False, "it has the same effect as no priority, which counts as 4 in this queue"),
        (5, "quorum", None, (4, 3, 6), True, "retries are delivered before messages without a priority"),
        (200, "quorum", None, (4, 3, 6), True, "… before messages without a priority (it counts as 31)"),
        (4, "quorum", None, (4, 3, 6), False, "it has the same effect as no priority, which counts as 4 in this queue"),
        (0, "quorum", None, (4, 3, 6), True, "retries are delivered after messages without a priority"),
        (5, "classic", 3, (3, 10, 8), True, "… before messages without a priority (it counts as 3)"),
        (0, "classic", 3, (3, 10, 8), False, "it has the same effect as no priority, which counts as 0 in this queue"),
    ],
)
def test_return_priority_effect(
    priority: int, kind: str, most: int | None, version: tuple[int, ...], *, works: bool, text: str
) -> None:
    (effect,) = return_priorities([policy(returned=priority)], "orders", kind, most, version)
    assert (effect.works, effect.text) == (works, text.replace("…", "retries are delivered"))
    assert bool(effect.mend) is not works


def test_return_priority_of_the_policies_that_can_apply_to_a_queue() -> None:
    policies = (
        policy("other", queue="mail.*"),
        policy("urgent", 9, queue="orders", priority="high"),
        policy("rest", None, queue="orders"),
        policy("never", 7, queue="*"),
    )
    found = return_priorities(policies, "orders", "quorum", None, examples.MODERN)
    assert [(effect.policy, effect.priority) for effect in found] == [("urgent", 9)]


def verified(version: tuple[int, ...], **arguments: Any) -> list[Finding]:
    expected = examples.expected(policy=[policy()])
    names = expected.names
    queue = Queue("orders", Arguments.of(**arguments))
    home = Binding(names.deliver, Destination("queue", "orders").key, "orders")
    live = examples.with_binding(examples.with_queue(examples.live(expected.blueprint), queue), home)
    return findings(expected, replace(live, version=version))


def test_verify_names_the_queues_that_ignore_a_return_priority() -> None:
    (found,) = verified((3, 10, 8), x_queue_type="quorum")
    assert (found.level, found.things, found.mend) == ("note", ("queue orders",), ELSEWHERE)
    assert found.problem == (
        "return_priority 5 of policy 'first' has no effect: a quorum queue of RabbitMQ 3.10 ignores priorities"
    )
    assert verified(examples.MODERN, x_queue_type="quorum") == []
    assert verified((3, 10, 8), x_queue_type="classic", x_max_priority=5) == []


def test_verify_warns_where_a_return_priority_makes_other_messages_late() -> None:
    (found,) = verified((4, 2, 1), x_queue_type="quorum")
    assert (found.level, found.things) == ("note", ("policy first",))
    assert found.mend == "upgrade to RabbitMQ 4.3 or later, or remove return_priority"


def test_attach_says_whether_the_queue_honours_a_return_priority() -> None:
    def said(version: tuple[int, ...], level: Level) -> list[str]:
        survey = a_snapshot(a_queue(), version=version)
        found = plan_queue(survey, "orders", MergeOptions(), FAILURES, policies=(policy(),))
        return [text for text in found.texts(level) if "return_priority" in text]

    honoured = "return_priority 5 of policy 'first': retries are delivered before messages without a priority"
    assert (said((4, 3, 6), Level.NOTE), said((4, 3, 6), Level.WARNING)) == ([honoured], [])
    assert said((3, 10, 8), Level.WARNING) == [
        "return_priority 5 of policy 'first' has no effect: a quorum queue of RabbitMQ 3.10 ignores priorities; "
        + ELSEWHERE
    ]
