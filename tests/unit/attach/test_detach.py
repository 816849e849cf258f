from __future__ import annotations

from dataclasses import replace

import pytest

from tarry.attach.detach import DetachPlan, wait_for_rejects, waiting
from tarry.attach.snapshot import UserQueue
from tarry.core.names import Destination
from tests.unit.attach.snapshots import NAMES


@pytest.mark.parametrize(
    ("depths", "counted"),
    [
        ({}, []),
        ({"retry.delay.8s": 0, "retry.scheduled": 0}, []),
        ({"retry.delay.8s": 2}, ["retry.delay.8s"]),
        ({"retry.ladder.3.64s": 1}, ["retry.ladder.3.64s"]),
        (
            {"retry.scheduled": 1, "retry.unroutable": 1, "retry.relay": 1},
            ["retry.relay", "retry.scheduled", "retry.unroutable"],
        ),
        ({"retry.relay.orders": 1, "retry.held.orders": 1}, ["retry.held.orders", "retry.relay.orders"]),
        (
            {"retry.relay.mail": 1, "retry.audit": 9, "manual-review.pending": 4, "orders": 7, "retry.delay.report": 3},
            [],
        ),
    ],
)
def test_the_return_binding_is_needed_while_a_message_is_on_the_way(depths: dict[str, int], counted: list[str]) -> None:
    assert sorted(waiting(NAMES, Destination("queue", "orders"), depths)) == counted


@pytest.mark.parametrize(
    ("figures", "stuck"),
    [
        ({}, 0),
        ({"messages": 7, "messages_ready": 5, "messages_unacknowledged": 2}, 0),
        ({"messages": 7, "messages_ready": 1, "messages_unacknowledged": 2}, 4),
        ({"messages": None, "messages_ready": 3, "messages_unacknowledged": 0}, 0),
    ],
)
def test_rejects_in_the_buffer_are_what_neither_part_of_the_total_counts(figures: dict[str, int], stuck: int) -> None:
    about = {"name": "orders", "durable": True, "auto_delete": False, "arguments": {}}
    assert UserQueue.read(about | figures).stuck == stuck


def test_nothing_is_taken_back_while_rejects_are_in_the_buffer() -> None:
    destination = Destination("queue", "orders")
    plan = DetachPlan(destination, ("tarry.orders",), ("retry.relay.orders",), (), None, stuck=3)
    waits = wait_for_rejects(plan)
    assert waits.parts == []
    assert not waits.nothing_to_do
    assert "3 rejects wait" in waits.kept[0]
    assert wait_for_rejects(replace(plan, stuck=0)).parts == ["policy  tarry.orders", "queue   retry.relay.orders"]
