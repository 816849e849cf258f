from __future__ import annotations

import pytest

from tarry.core.fingerprint import blanked, fingerprint


@pytest.mark.parametrize(
    ("reason", "blank"),
    [
        ("order 4711 not found", "order # not found"),
        ("no row 6f1c9a52-0b7e-4c1d-9f00-7a7272790001 in t", "no row # in t"),
        ("object at 0x7f4A8fbd6fd0 died", "object at # died"),
        ("commit deadbeef99 is gone", "commit # is gone"),
        ("took 12.5s,\n  limit 3s", "took #.#s, limit #s"),
        ("a decade of cafes", "a decade of cafes"),
        ("", ""),
    ],
)
def test_numbers_and_ids_are_blanked_and_words_are_not(reason: str, blank: str) -> None:
    assert blanked(reason) == blank


def test_the_same_error_about_two_orders_has_one_fingerprint() -> None:
    assert fingerprint("HTTPError", "order 1: 503") == fingerprint("HTTPError", "order 22: 503")
    assert fingerprint("HTTPError", "order 1") != fingerprint("Timeout", "order 1")
    assert fingerprint("HTTPError", "order 1") == "4fef5391b12f5c7c"


def test_silence_has_none() -> None:
    assert fingerprint(None, None) is None
    assert fingerprint(None, "") is None
