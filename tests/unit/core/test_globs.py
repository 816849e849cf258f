from __future__ import annotations

import time
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.core.globs import covers
from tarry.core.policy import LONGEST_GLOB


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("*", "orders"),
        ("*", ""),
        ("orders.*", "orders.*"),
        ("orders.*", "orders.eu.*"),
        ("orders.*", "orders.eu"),
        ("*.eu", "orders.*.eu"),
        ("*a*", "xa"),
        ("?*", "?"),
        ("*?", "?*"),
        ("**", "*"),
        ("[a-z]*", "b?"),
        ("[a-c]", "[ab]"),
        ("[!x]", "[a-c]"),
        ("?", "[!x]"),
        ("[ab]*", "[a]*"),
        ("a[", "a["),
        ("[]]", "]"),
        ("[*]", "[*]"),
        ("*a*a*", "*a?a*"),
    ],
)
def test_covers_is_true_where_each_match_of_one_matches_the_other(wide: str, narrow: str) -> None:
    assert covers(wide, narrow)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("orders.*", "*"),
        ("orders.*", "orders"),
        ("orders.*", "orders*"),
        ("Orders", "orders"),
        ("?", "*"),
        ("?", "??"),
        ("?*", "*"),
        ("[a-y]*", "[a-z]*"),
        ("[!x]", "?"),
        ("*a", "*a*"),
        ("[*]", "*"),
        ("a", ""),
        ("*ab*", "*a*b*"),
    ],
)
def test_covers_is_false_where_one_text_matches_only_the_narrower(wide: str, narrow: str) -> None:
    assert not covers(wide, narrow)


GLOBS = st.text("ab*?[!]-", max_size=7)
TEXTS = st.lists(st.text("abc[!]-", max_size=6), max_size=40)


@given(GLOBS, GLOBS, TEXTS)
def test_covers_never_contradicts_a_text_that_tells_them_apart(wide: str, narrow: str, texts: list[str]) -> None:
    apart = [text for text in texts if fnmatchcase(text, narrow) and not fnmatchcase(text, wide)]

    assert not (apart and covers(wide, narrow)), apart


@pytest.mark.parametrize("unit", ["*a", "*?", "*[ab]", "*a*", "[!b]*", "?*?", "*a?"])
def test_covers_gives_up_on_patterns_made_to_be_slow(unit: str) -> None:
    pattern = (unit * LONGEST_GLOB)[: LONGEST_GLOB - 1]
    started = time.process_time()

    covers(pattern + "b", pattern + "c")
    covers("*a" + "?" * 400, "*a" + "?" * 300 + "*")

    assert time.process_time() - started < 5
