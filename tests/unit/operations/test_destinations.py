from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tarry.core.names import Destination
from tarry.operations.destinations import is_glob, matching
from tarry.operations.pause import Pause, Scope

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
        assert Destination.of_label(destination.label) == destination
    assert (is_glob("orders"), is_glob("orders.*"), is_glob("order?"), is_glob("[ab]")) == (False, True, True, True)


@pytest.mark.parametrize(
    ("scope", "name", "wanted"),
    [
        ("queue", "*", ["orders"]),
        ("policy", "gold", ["~policy:gold"]),
        ("job-type", "pdf", ["~type:pdf"]),
        ("automatic-retries", "", ["~auto"]),
        ("stuck-recovery", "", []),
    ],
)
def test_a_pause_wants_what_is_of_its_scope(scope: Scope, name: str, wanted: list[str]) -> None:
    pause = Pause("1", scope, name, "ann", None, datetime.now(UTC), None, is_over=False, exceptions=[])
    labels = ["orders", "~policy:gold", "~policy:plain", "~type:pdf", "~auto"]
    assert [label for label in labels if pause.wants(label)] == wanted


def test_a_pause_does_not_want_what_was_excepted_from_it() -> None:
    pause = Pause(
        "1", "queue", "orders.*", "ann", None, datetime.now(UTC), None, is_over=False, exceptions=["orders.us"]
    )
    assert [label for label in LABELS if pause.wants(label)] == ["orders.eu"]
