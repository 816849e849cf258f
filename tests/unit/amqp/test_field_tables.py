from __future__ import annotations

import struct
from typing import Any

import pytest

from tarry.amqp.field_tables import array_entry, entry, table, walk
from tests.unit.contract.wire import array, integer, named, text
from tests.unit.contract.wire import table as nested


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, b"V"),
        (True, b"t\x01"),
        (False, b"t\x00"),
        (5, integer(5)),
        (-(2**63), integer(-(2**63))),
        (2**63, b"d" + struct.pack(">d", 2.0**63)),
        (0.5, b"d" + struct.pack(">d", 0.5)),
        ("é", text("é")),
        (b"\xff", b"x\x00\x00\x00\x01\xff"),
        ([1, "a", []], array(integer(1), text("a"), array())),
        ({"b": {"c": None}}, nested(named("b", nested(named("c", b"V"))))),
    ],
)
def test_plain_values_become_fields(value: Any, written: bytes) -> None:
    assert table({"a": value}) == named("a", written)


def test_a_value_that_no_header_can_carry_is_an_error() -> None:
    with pytest.raises(ValueError, match="a header cannot hold a object"):
        table({"a": object()})
    with pytest.raises(ValueError, match="too long for the name of a header"):
        table({"a" * 256: 1})


def test_single_entries() -> None:
    assert entry("a", "b") == named("a", "b")
    assert entry("a", 7) == named("a", 7)
    assert array_entry("a", ["b", "c"]) == named("a", array(text("b"), text("c")))


def test_a_table_is_walked_in_order() -> None:
    found = list(walk(named("b", "x") + named("a", 1) + named("b", "y")))
    assert [(name, field.kind, field.value) for name, field in found] == [
        (b"b", b"S", b"x"),
        (b"a", b"l", b"\x00\x00\x00\x00\x00\x00\x00\x01"),
        (b"b", b"S", b"y"),
    ]
