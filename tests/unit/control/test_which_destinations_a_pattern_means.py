from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tarry.control.destinations import destination_of, is_glob, matching
from tarry.control.pauses import Pause
from tarry.core.names import Destination

LABELS = ["orders.eu", "orders.us", "mail", "exchange:events", "[odd]"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("mail", ["mail"]),
        ("orders.*", ["orders.eu", "orders.us"]),
        ("*", sorted(LABELS)),
        ("ORDERS.*", []),
        ("exchange:*", ["exchange:events"]),
        ("[odd]", ["[odd]"]),
        ("orders", []),
    ],
)
def test_a_glob_means_what_it_matches_and_a_name_means_itself(pattern: str, found: list[str]) -> None:
    assert matching(pattern, LABELS) == found


def test_a_label_says_whether_it_is_a_queue_or_an_exchange() -> None:
    for destination in (Destination("queue", "orders"), Destination("exchange", "events")):
        assert destination_of(destination.label) == destination
    assert (is_glob("orders"), is_glob("orders.*"), is_glob("order?"), is_glob("[ab]")) == (False, True, True, True)


def test_a_pause_does_not_want_what_was_excepted_from_it() -> None:
    pause = Pause("1", "orders.*", "ann", None, datetime.now(UTC), None, is_over=False, exceptions=["orders.us"])
    assert [label for label in LABELS if pause.wants(label)] == ["orders.eu"]
