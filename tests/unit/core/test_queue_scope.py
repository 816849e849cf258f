from __future__ import annotations

import pytest

from tarry.core.queue_scope import QueueScope, like

SCOPE = QueueScope(("orders.*", "bill?ng", "exchange:shop"))


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("orders.eu", True),
        ("orders.", True),
        ("orders", False),
        ("billing", True),
        ("bill/ng", True),
        ("billng", False),
        ("Orders.eu", False),
        ("exchange:shop", True),
        ("shop", False),
        ("", False),
    ],
)
def test_a_name_is_allowed_if_one_glob_matches_it(name: str, *, allowed: bool) -> None:
    assert SCOPE.allows(name) is allowed


@pytest.mark.parametrize(
    ("pattern", "covered"),
    [
        ("orders.eu", True),
        ("orders.*", True),
        ("orders.[ab]*", True),
        ("orders.eu.?", True),
        ("order*", False),
        ("*", False),
        ("bill?ng", True),
        ("bill*ng", False),
        ("bill[io]ng", False),
        ("[o]rders.x", False),
    ],
)
def test_a_pattern_is_covered_if_all_that_it_matches_is_allowed(pattern: str, *, covered: bool) -> None:
    assert SCOPE.covers(pattern) is covered


def test_a_glob_becomes_a_pattern_of_sql_with_nothing_else_in_it() -> None:
    assert like("a_b%c\\d.*?") == "a\\_b\\%c\\\\d.%_"
    assert SCOPE.likes() == ["orders.%", "bill_ng", "exchange:shop"]
