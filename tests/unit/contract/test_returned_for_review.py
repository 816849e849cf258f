from __future__ import annotations

import pytest

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import scan
from tarry.amqp.properties import Properties
from tarry.contract.message import Refused, Request
from tarry.contract.request import parse
from tarry.contract.returned import for_review
from tests.unit.contract.wire import ACCEPT, NEW_ID, array, death, headers, named, new_id, published, rejected

FRAME_MAX = 131_072
RETRY_ID = "24e9476b-f4f5-5044-8227-4c112216f4bc"


def reviewed(delivery: Delivery, reason: str = "exhausted", frame_max: int = FRAME_MAX) -> Properties:
    item = parse(delivery, ACCEPT, new_id)
    assert isinstance(item, Request | Refused)
    item = item._replace(retry_id=RETRY_ID) if isinstance(item, Request) else item
    properties = for_review(item, reason, 4, frame_max)
    assert properties.size() + 20 <= frame_max
    return properties


def names_of(properties: Properties) -> list[str]:
    return [name.decode() for name, _, _, _ in scan(properties.headers or b"")]


def test_a_request_goes_whole_with_the_reason_and_its_origin() -> None:
    mine = headers({"a": 1, "CC": array(), "review_reason": "an older one", "tarry-due-ms": 5})
    properties = reviewed(rejected("orders", mine, exchange="shop", key="k", message_id=b"m-1", expiration=b"5"))
    evidence = named("x-death", array(death("orders", "rejected", "shop", ["k"])))
    assert properties.headers == named("a", 1) + evidence + headers(
        {
            "review_reason": "exhausted",
            "tarry-id": RETRY_ID,
            "tarry-round": 4,
            "tarry-count": 0,
            "tarry-queue": "orders",
            "tarry-exchange": "shop",
            "tarry-key": "k",
        }
    )
    assert (properties.delivery_mode, properties.expiration, properties.message_id) == (2, None, b"m-1")


def test_what_was_said_of_the_failure_is_there_to_be_read() -> None:
    spoken: dict[str, bytes | str | int] = {"original_queue": "orders", "error_reason": "boom", "error_class": "final"}
    assert (reviewed(published(spoken)).headers or b"").startswith(headers(spoken))


def test_a_refused_message_says_only_what_is_known() -> None:
    properties = reviewed(Delivery(b"", Properties(), "", "k"), "no origin")
    assert properties.headers == headers({"review_reason": "no origin", "tarry-id": NEW_ID, "tarry-round": 4})


OURS = headers({"tarry-id": RETRY_ID, "tarry-round": 1, "tarry-queue": "orders", "tarry-priority": "2"})


@pytest.mark.parametrize(
    "delivery",
    [
        rejected("orders", OURS, priority=7),
        rejected("orders", OURS, reason="expired", priority=7),
        rejected("orders", OURS, named("big", "b" * FRAME_MAX), priority=7),
        rejected("shipping", OURS, named("tarry-via", "exchange"), reason="expired", priority=7),
    ],
    ids=["a request", "refused", "squeezed", "refused, through an exchange"],
)
def test_review_has_the_messages_own_priority(delivery: Delivery) -> None:
    properties = reviewed(delivery)
    assert (properties.priority, "tarry-priority" in names_of(properties)) == (2, False)


def test_review_of_a_forwarded_message_keeps_the_priority_that_it_was_published_with() -> None:
    assert reviewed(rejected("shipping", OURS, reason="expired", priority=7)).priority == 7
    assert reviewed(Delivery(b"", Properties(headers=b"\xff", priority=7), "", "k")).priority == 7


def test_a_long_reason_is_cut() -> None:
    assert named("review_reason", "r" * 1000) in (reviewed(rejected(), "r" * 5000).headers or b"")


def test_a_user_id_is_told_once() -> None:
    properties = reviewed(rejected("orders", named("tarry-user-id", "old"), user_id=b"alice"))
    assert (names_of(properties).count("tarry-user-id"), properties.user_id) == (1, None)
    assert named("tarry-user-id", "alice") in (properties.headers or b"")


def test_where_room_is_short_the_evidence_goes_first() -> None:
    big = named("big", "b" * (FRAME_MAX - 330))
    assert names_of(reviewed(rejected("orders", big)))[:2] == ["big", "review_reason"]


def test_then_the_length_of_the_reason() -> None:
    big = named("big", "b" * (FRAME_MAX - 280))
    properties = reviewed(rejected("orders", big), "r" * 500)
    assert names_of(properties) == ["big", "review_reason", "tarry-id", "tarry-round"]
    assert named("review_reason", "r" * 80) in (properties.headers or b"")


def test_and_last_what_fits_no_frame_of_ours() -> None:
    """A producer with a larger frame limit can send what we cannot; its name is all that is left of it."""
    mine = named("a", 1) + named("big", "b" * FRAME_MAX) + named("c", 3)
    properties = reviewed(rejected("orders", mine), "boom")
    assert names_of(properties) == ["a", "c", "review_reason", "tarry-id", "tarry-round"]
    told = named("review_reason", "boom (left out, too large for one frame: big)")
    assert told in (properties.headers or b"")
