from __future__ import annotations

import pytest

from tarry.amqp.delivery import Delivery
from tarry.contract.message import Origin, Refused, Request
from tarry.contract.request import parse
from tarry.core.decide import Failure
from tests.unit.contract.test_returned import NOW, RETRY_ID, sent_back
from tests.unit.contract.wire import ACCEPT, NEW_ID, headers, named, new_id, published, rejected

OURS: dict[str, bytes | str | int] = {
    "tarry-id": RETRY_ID,
    "tarry-round": 3,
    "tarry-count": 2,
    "tarry-max-retries": 5,
    "tarry-due-ms": NOW,
    "tarry-since-ms": NOW - 60_000,
    "tarry-queue": "orders",
    "tarry-exchange": "shop",
    "tarry-key": "order.created",
}


def understood(delivery: Delivery) -> Request:
    request = parse(delivery, ACCEPT, new_id)
    assert isinstance(request, Request), request
    return request


def test_our_headers_name_the_failed_round_and_the_first_origin() -> None:
    request = understood(rejected("orders", headers(OURS), exchange="retry.arrive", message_id=b"m-9"))
    assert (request.retry_id, request.knows_round, request.deduplicable) == (RETRY_ID, True, True)
    assert request.origin == Origin("orders", "shop", "order.created")
    assert request.failure == Failure(
        "orders", retry_count=2, round=3, first_failed_ms=NOW - 60_000, error_type="rejected"
    )


@pytest.mark.parametrize(
    ("said", "own"),
    [("none", None), ("0", 0), ("255", 255), ("256", 7), ("-1", 7), ("x", 7), ("", 7), ("٣", 7), (3, 7), (b"V", 7)],
)
def test_request_own_priority_is_in_our_header_if_it_can_be_read(said: bytes | str | int, own: int | None) -> None:
    assert understood(rejected("orders", headers(OURS | {"tarry-priority": said}), priority=7)).priority == own


def test_request_priority_of_another_queues_headers_does_not_count() -> None:
    forwarded = headers(OURS | {"tarry-priority": "2"})
    assert understood(rejected("shipping", forwarded, priority=7)).priority == 7
    through_exchange = forwarded + named("tarry-via", "exchange")
    assert understood(rejected("shipping", through_exchange, priority=7)).priority == 2


def test_our_count_beats_what_the_request_says() -> None:
    spoken: dict[str, bytes | str | int] = {"original_queue": "orders", "retry_count": 0}
    assert understood(published(OURS | spoken)).failure.retry_count == 2


def test_a_reject_keeps_the_form_of_contract_of_its_first_request() -> None:
    spoken: dict[str, bytes | str | int] = {"tarry-form": "contract", "max_retries": 7, "priority": "high"}
    failure = understood(rejected("orders", headers(OURS | spoken))).failure
    assert (failure.max_retries, failure.priority, failure.retry_count) == (7, "high", 2)


def test_without_our_mark_the_contracts_words_are_the_applications_own() -> None:
    spoken: dict[str, bytes | str | int] = {"max_retries": 7, "priority": "high"}
    failure = understood(rejected("orders", headers(OURS | spoken))).failure
    assert (failure.max_retries, failure.priority) == (None, None)


def test_our_mark_without_our_id_means_nothing() -> None:
    assert understood(rejected("orders", headers({"tarry-form": "contract", "max_retries": 7}))).failure == Failure(
        "orders", error_type="rejected"
    )


@pytest.mark.parametrize("message_id", [b"m-1", None])
def test_a_copy_forwarded_to_another_queue_is_a_message_of_its_own(message_id: bytes | None) -> None:
    """Two queues that got copies with our headers must not be taken for one retry: one of them would be lost."""
    contract = named("tarry-form", "contract") + named("retry_count", 2)
    request = understood(rejected("shipping", headers(OURS), contract, message_id=message_id))
    assert request.failure == Failure("shipping", error_type="rejected")
    assert request.origin == Origin("shipping", "", "shipping")
    assert request.retry_id != RETRY_ID
    assert (request.retry_id == NEW_ID) is (message_id is None)
    assert not request.knows_round
    assert not request.speaks_contract


@pytest.mark.parametrize("message_id", [b"m-1", None])
def test_a_return_through_an_exchange_keeps_counting_in_any_queue(message_id: bytes | None) -> None:
    """Or two queues behind one exchange could play a message to each other for ever."""
    request = understood(
        rejected("shipping", headers(OURS | {"tarry-via": "exchange"}), exchange="retry.arrive", message_id=message_id)
    )
    assert (request.failure.retry_count, request.failure.round) == (2, 3)
    assert request.origin == Origin("shipping", "shop", "order.created")
    assert request.retry_id not in (RETRY_ID, NEW_ID)
    assert (request.deduplicable, request.knows_round) == (message_id is not None, False)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("tarry-id", "nonsense", "the header `tarry-id` is not a retry id: 'nonsense'"),
        ("tarry-id", 5, "the header `tarry-id` must be UTF-8 text"),
        ("tarry-round", -1, "`tarry-round` is -1: it must be from 0 to 1000000"),
        ("tarry-round", 2**40, "`tarry-round` is 1099511627776: it must be from 0 to 1000000"),
        ("tarry-count", "x", "the header `tarry-count` must be a whole number"),
        ("tarry-since-ms", 2**60, "`tarry-since-ms` is 1152921504606846976: it must be from 0 to 9007199254740992"),
        ("tarry-queue", 5, "the header `tarry-queue` must be UTF-8 text"),
        ("tarry-key", "~id:x", "its routing key starts with '~', which is reserved for tarry"),
        ("tarry-key", "k" * 256, "its routing key is longer than 255 bytes"),
        ("tarry-exchange", "a\x00b", "its exchange contains a NUL: 'a\\x00b'"),
    ],
)
def test_forged_headers_of_ours_are_refused(name: str, value: str | int, reason: str) -> None:
    refused = parse(rejected("orders", headers(OURS | {name: value})), ACCEPT, new_id)
    assert isinstance(refused, Refused)
    assert refused.reason == reason


@pytest.mark.parametrize("spelling", [RETRY_ID.upper(), f"{{{RETRY_ID}}}", f"urn:uuid:{RETRY_ID}"])
def test_an_id_is_the_same_however_it_is_spelt(spelling: str) -> None:
    assert understood(rejected("orders", headers(OURS | {"tarry-id": spelling}))).retry_id == RETRY_ID


def test_our_headers_are_replaced_and_not_piled_up() -> None:
    first = sent_back(rejected("orders", named("a", 1), message_id=b"m-1"))
    came_back = (first.headers or b"")[: (first.headers or b"").index(b"\x03BCC")]
    second = sent_back(rejected("orders", came_back, message_id=b"m-1"), round_=2)
    assert second.headers == (first.headers or b"").replace(named("tarry-round", 1), named("tarry-round", 2)).replace(
        f"{RETRY_ID}:1".encode(), f"{RETRY_ID}:2".encode()
    )


def test_the_user_id_of_the_first_round_is_still_there_in_the_second() -> None:
    first = sent_back(rejected("orders", message_id=b"m-1", user_id=b"alice"))
    assert named("tarry-user-id", "alice") in (first.headers or b"")
    second = sent_back(rejected("orders", headers(OURS), named("tarry-user-id", "alice")), round_=2)
    assert (second.headers or b"").count(named("tarry-user-id", "alice")) == 1


def test_a_forged_user_id_does_not_travel() -> None:
    assert b"mallory" not in (sent_back(rejected("orders", named("tarry-user-id", "mallory"))).headers or b"")
