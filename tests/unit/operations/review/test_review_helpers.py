"""Edits as they are typed, filters, cursors, a steady rate, and values told as what they are."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.amqp.field_tables import table
from tarry.amqp.properties import Properties
from tarry.cli.output import payload_text, shortened
from tarry.core.printable import printable
from tarry.errors import SettingsError
from tarry.operations.paging import read_cursor, write_cursor
from tarry.operations.review.browse import Filter
from tarry.operations.review.message import describe, headers
from tarry.operations.review.pace import Pacer
from tarry.operations.review.redrive import edits_from


def test_headers_are_typed_as_text_or_json() -> None:
    edits = edits_from(["color=red", "tries:=5", "eq=a=b", "empty="], ["shape"])
    assert edits.headers == {"color": "red", "tries": 5, "eq": "a=b", "empty": ""}
    assert edits.dropped == ("shape",)


@pytest.mark.parametrize(
    "typed", ["color", "=x", "n:=five", "tarry-id=1", "x-death=1", "BCC=a", "review_reason=x", f"{'n' * 300}=1"]
)
def test_a_wrong_edit_is_refused(typed: str) -> None:
    with pytest.raises(SettingsError):
        edits_from([typed])


def test_a_glob_means_only_its_stars() -> None:
    found = Filter(queue="a_b.*?", reason="100%").parameters()
    assert (found["queue"], found["reason"]) == ("a\\_b.%_", "%100\\%%")
    assert Filter().is_empty
    assert not Filter(queue="").is_empty


@given(st.datetimes(timezones=st.just(UTC)), st.uuids())
def test_a_cursor_comes_back_as_it_was(moment: datetime, retry_id: Any) -> None:
    assert read_cursor(write_cursor("since", moment, str(retry_id)), "since") == (moment, str(retry_id))


@given(st.text(max_size=60))
def test_any_other_text_is_no_cursor(text: str) -> None:
    try:
        read_cursor(text, "since")
    except SettingsError:
        return
    raise AssertionError(text)


def test_a_rate_is_kept_and_not_caught_up_on() -> None:
    now = [0.0]
    pacer = Pacer(10.0, lambda: now[0])
    assert pacer.batch(200) == 2
    waits = []
    for _ in range(4):
        waits.append(round(pacer.wait(2), 3))
        now[0] += waits[-1]
    assert waits == [0.0, 0.2, 0.2, 0.2]
    now[0] += 60
    assert pacer.wait(2) == 0
    assert round(pacer.wait(2), 3) == 0.2
    assert Pacer(None, lambda: 0.0).wait(500) == 0


def test_every_kind_of_value_is_told_as_what_it_is() -> None:
    said = {"a": 1, "b": "text", "c": None, "d": True, "e": 1.5, "f": {"g": [1, "x"]}, "h": b"\xff", "i": float("nan")}
    assert headers(table(said)) == said | {"h": {"base64": "/w=="}, "i": "nan"}
    assert headers(b"\x01aT" + (7).to_bytes(8)) == {"a": {"timestamp": 7}}
    assert "unreadable" in headers(b"\x05")
    assert describe(Properties(message_id=b"m", delivery_mode=2)) == {
        "delivery_mode": 2,
        "message_id": "m",
        "headers": {},
    }
    assert "unreadable" in describe(b"")


def test_a_table_without_end_is_not_followed_for_ever() -> None:
    deep: Any = "end"
    for _ in range(100):
        deep = [deep]
    assert "base64" in str(headers(table({"a": deep})))


@given(st.text())
def test_nothing_that_a_terminal_acts_on_gets_through(text: str) -> None:
    shown = printable(text)
    assert all(one.isprintable() for one in shown)
    assert len(shortened(text, 20)) <= 20


def test_payloads_keep_their_lines() -> None:
    assert payload_text(b"a\n\tb\x1b[2J") == "a\n\tb\\x1b[2J"
    assert payload_text("\u202eevil".encode()) == "\\u202eevil"
    assert payload_text(b"\xff") is None
