from __future__ import annotations

import pytest

from tarry.attach.detach import waiting
from tarry.core.names import Destination
from tests.unit.attach.surveys import NAMES


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
def test_the_way_home_is_needed_while_anything_on_the_way_holds_a_message(
    depths: dict[str, int], counted: list[str]
) -> None:
    assert sorted(waiting(NAMES, Destination("queue", "orders"), depths)) == counted
