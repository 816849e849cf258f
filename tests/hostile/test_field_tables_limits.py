"""The bounds of a header table: what is inside them passes again and again, what is outside is in review, whole."""

from __future__ import annotations

import time

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import MOST_ENTRIES, MOST_OWN
from tarry.amqp.properties import Properties
from tarry.contract.message import Acceptance, Refused, Request
from tarry.contract.request import parse
from tarry.contract.returned import for_review
from tarry.core.names import Names
from tests.hostile.fuzz.case import Case, Expected
from tests.hostile.fuzz.oracle import judge
from tests.unit.contract.wire import named, published

ACCEPT = Acceptance(Names())
FRAME_MAX = 131_072


def headers(count: int) -> bytes:
    """So many in all."""
    return b"\x01aV" * (count - 1) + named("original_queue", "orders")


def parsed(raw: bytes) -> Request | Refused:
    item = parse(Delivery(b"", Properties(headers=raw), "", "retry.scheduled"), ACCEPT, lambda: "i" * 36)
    assert isinstance(item, Request | Refused)
    return item


def test_as_many_as_there_may_be_return_and_return_again() -> None:
    case = Case("headers", headers(MOST_OWN), expected=Expected("orders", b""))
    assert judge(case) == "scheduled"


def test_one_more_is_refused_and_kept_as_it_was() -> None:
    for count in (MOST_OWN + 1, MOST_ENTRIES, MOST_ENTRIES + 1, 40_000):
        raw = headers(count)
        item = parsed(raw)
        assert isinstance(item, Refused), count
        assert item.reason == "the header table is broken: it has more than 4000 entries"
        reviewed = for_review(item, item.reason, 0, FRAME_MAX)
        assert raw in (reviewed.headers or b"")


def test_a_frame_full_of_tiny_headers_costs_next_to_nothing() -> None:
    raw = b"\x01aV" * 43_600
    started = time.process_time()
    for _ in range(20):
        item = parsed(raw)
        assert for_review(item, "because", 0, FRAME_MAX).size() <= FRAME_MAX
    assert time.process_time() - started < 2, "a tenth of a second for each: it was a third when all of it was read"


def test_what_is_too_much_for_a_frame_is_left_out_largest_first() -> None:
    """From a producer that is allowed larger frames than we are."""
    raw = named("small", "s") + named("big", "b" * 100_000) + named("bigger", "c" * 120_000)
    item = parsed(raw + headers(1))
    reviewed = for_review(item, "because", 0, FRAME_MAX).headers or b""
    assert named("small", "s") in reviewed
    assert named("big", "b" * 100_000) in reviewed
    assert b"left out, too large for one frame: bigger" in reviewed


def test_places_in_large_tables_are_not_remembered() -> None:
    """They take seventy times the room of the table itself, and there may be two thousand of them at once."""
    assert parsed(headers(300)).entries is None  # type: ignore[union-attr]
    assert parsed(headers(200)).entries is not None  # type: ignore[union-attr]


def test_a_name_in_json_that_is_no_unicode_is_passed_over() -> None:
    body = b'{"original_queue": "orders", "\\ud800": 1}'
    delivery = published({}, body, content_type=b"application/vnd.tarry.retry+json")
    item = parse(delivery, ACCEPT, lambda: "i" * 36)
    assert isinstance(item, Request), item
    assert item.origin.queue == "orders"
