from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.core.id_prefix import fingerprint_range, only, uuid_range
from tarry.errors import AmbiguousIdError


@given(st.uuids(), st.integers(8, 31), st.booleans())
def test_uuid_range_contains_every_id_with_that_beginning(whole: uuid.UUID, length: int, dashes: bool) -> None:  # noqa: FBT001 - a parameter
    text = str(whole) if dashes else whole.hex
    bounds = uuid_range(text[:length].upper())
    assert bounds is not None
    assert uuid.UUID(bounds.low) <= whole <= uuid.UUID(bounds.high)
    assert bounds.low <= str(whole) <= bounds.high
    assert str(whole).startswith(bounds.beginning)


@given(st.uuids(), st.uuids())
def test_uuid_range_contains_no_other_id(one: uuid.UUID, other: uuid.UUID) -> None:
    bounds = uuid_range(one.hex[:12])
    assert bounds is not None
    assert (bounds.low <= str(other) <= bounds.high) == (other.hex[:12] == one.hex[:12])


@pytest.mark.parametrize("text", ["5f0c", "5F0C", "5f0c…", " 5f0c ", "5f0c1234-", "5f0c1234-ab", "12345678"])
def test_uuid_range_takes_the_beginning_of_an_id(text: str) -> None:
    assert uuid_range(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5f0",
        "…",
        "4711",
        "1234567",
        "ORDER-4711",
        "2030-01-31",
        "5f-0c",
        "a" * 32,
        "a" * 33,
        "xyz1",
        "ä" * 5,
        "5f0c\0",
    ],
)
def test_uuid_range_refuses_what_is_no_beginning_of_an_id(text: str) -> None:
    assert uuid_range(text) is None


def test_fingerprint_range_takes_four_characters_or_more() -> None:
    assert fingerprint_range("9C1E…") == ("9c1e000000000000", "9c1effffffffffff", "9c1e")
    assert fingerprint_range("1234") is not None
    assert [fingerprint_range(text) for text in ("9c1", "9c1e000000000000", "timeout")] == [None, None, None]


def test_only_refuses_several_and_lists_them() -> None:
    assert only("5f0c", []) is None
    assert only("5f0c", [("5f0c1", "orders")]) == "5f0c1"
    with pytest.raises(
        AmbiguousIdError, match=r"'5f0c' is the beginning of 2 ids: 5f0c1 \(orders\), 5f0c2\. Give more"
    ):
        only("5f0c", [("5f0c1", "orders"), ("5f0c2", "")])
    with pytest.raises(AmbiguousIdError, match="more than 10 ids"):
        only("5f0c", [(f"5f0c{number}", "") for number in range(11)])
