from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.amqp.delivery import Delivery
from tarry.amqp.properties import Properties
from tarry.contract.message import Request
from tarry.contract.request import parse
from tarry.contract.retry_pb2 import RetryMessage
from tarry.contract.returned import fits, returning
from tarry.core.decide import Schedule
from tarry.core.eligibility import Eligibility
from tarry.core.ladder import Itinerary
from tarry.core.names import Destination
from tarry.core.policy import ErrorClass, Policy
from tests.unit.contract.wire import (
    ACCEPT,
    array,
    death,
    entries_of,
    entry_names,
    field_values,
    headers,
    integer,
    named,
    new_id,
    published,
    rejected,
    table,
    text,
)

NOW = 1_700_000_000_000
POLICY = Policy(name="plain", schedule=["8s"], max_retries=3)
WAY = Itinerary(8_000, (0, 0, 0, 0, 0, 0, 3), 8_375)
SCHEDULE = Schedule(POLICY, ErrorClass.RETRYABLE, 2, 3, WAY, NOW + 8_375)
HOME = Destination("queue", "orders")
RETRY_ID = "24e9476b-f4f5-5044-8227-4c112216f4bc"


FIRST = SCHEDULE._replace(policy=POLICY.model_copy(update={"return_priority": 7}))
"""By a policy whose messages return with priority 7."""


def sent_back(
    delivery: Delivery, destination: Destination = HOME, round_: int = 1, schedule: Schedule = SCHEDULE
) -> Properties:
    request = parse(delivery, ACCEPT, new_id)
    assert isinstance(request, Request), request
    return returning(request._replace(retry_id=RETRY_ID), schedule, round_, NOW, destination)


def ours(exchange: str = "", key: str = "orders", since: int = NOW, round_: int = 1) -> bytes:
    """The headers that tarry adds, written out."""
    way = ["~in:8s", "~6>0", "~0:3", f"~id:{RETRY_ID}:{round_}", "~auto", "~policy:plain", "~to:orders"]
    said = headers(
        {
            "tarry-id": RETRY_ID,
            "tarry-round": round_,
            "tarry-count": 2,
            "tarry-max-retries": 3,
            "tarry-due-ms": NOW + 8_375,
            "tarry-since-ms": since,
            "tarry-queue": "orders",
            "tarry-exchange": exchange,
            "tarry-key": key,
        }
    )
    return said + named("BCC", array(*map(text, way)))


SURPRISES = headers(
    {
        "double": b"d" + struct.pack(">d", 0.1),
        "float": b"f" + struct.pack(">f", 0.5),
        "milliseconds as a timestamp": b"T" + struct.pack(">Q", 1_700_000_000_000_000),
        "decimal": b"D\x02\x00\x00\x30\x39",
        "nothing": b"V",
        "yes": b"t\x01",
        "bytes": b"x\x00\x00\x00\x03\x00\xff\x80",
        "not text": b"S\x00\x00\x00\x02\xff\xfe",
        "nested": table(named("a", array(table(named("b", b"V")), integer(-(2**63))))),
        "signed byte": b"b\x80",
        "unsigned long": b"L" + b"\xff" * 8,
        "": "an entry without a name",
        "twice": 1,
    }
) + named("twice", 2)


def test_users_headers_pass_byte_for_byte_and_in_order() -> None:
    assert sent_back(rejected("orders", SURPRISES, message_id=b"m-1")).headers == SURPRISES + ours()


def test_all_other_properties_pass_as_they_are() -> None:
    properties = Properties(
        content_type=b"text/\xff",
        content_encoding=b"gzip",
        headers=named("x-death", array(death("orders"))),
        delivery_mode=1,
        priority=9,
        correlation_id=b"\x00\xff",
        reply_to=b"answers",
        expiration=b"60000",
        message_id=b"m-1",
        timestamp=2**64 - 1,
        type=b"order.created",
        user_id=b"alice",
        app_id=b"shop",
        cluster_id=b"old",
    )
    returned = sent_back(Delivery(b"", properties, "retry.intake", "orders"))
    assert returned == replace(
        properties,
        headers=ours() + named("tarry-user-id", "alice"),
        delivery_mode=2,
        expiration=None,
        user_id=None,
        cluster_id=None,
    )


def test_a_reply_address_that_would_close_the_channel_is_left_out() -> None:
    assert sent_back(rejected(reply_to=b"amq.rabbitmq.reply-to")).reply_to is None
    token = b"amq.rabbitmq.reply-to.g1h2AA5yZXBseUA3"
    assert sent_back(rejected(reply_to=token)).reply_to == token


def test_headers_of_the_broker_and_those_that_copy_are_not_passed_on() -> None:
    harmful = headers(
        {
            "x-first-death-queue": "orders",
            "x-last-death-reason": "rejected",
            "x-delivery-count": 3,
            "x-acquired-count": 3,
            "CC": array(text("elsewhere")),
            "BCC": "not even an array",
            "x-mine": "stays",
        }
    )
    returned = sent_back(rejected("orders", harmful, message_id=b"m-1"))
    assert returned.headers == named("x-mine", "stays") + ours()


def test_on_a_bare_reject_the_applications_retry_count_is_its_own() -> None:
    own = headers({"retry_count": 99, "error_reason": "mine", "max_retries": "x"})
    assert sent_back(rejected("orders", own, message_id=b"m-1")).headers == own + ours()


def test_what_was_said_of_this_failure_does_not_speak_of_the_next() -> None:
    spoken: dict[str, bytes | str | int] = {
        "a": 1,
        "original_queue": "orders",
        "retry_count": 1,
        "max_retries": 5,
        "error_reason": "x",
        "error_type": "x",
        "error_class": "retryable",
        "retry_after_ms": 5,
        "next_retry_at_ms": 0,
        "review_reason": "x",
        "priority": "high",
        "b": 2,
    }
    returned = sent_back(published(spoken, message_id=b"m-1"))
    left = headers({"a": 1, "original_queue": "orders", "max_retries": 5, "priority": "high", "b": 2})
    contract = headers({"tarry-form": "contract", "retry_count": 2})
    whole = ours()
    before_bcc = whole.index(b"\x03BCC")
    assert returned.headers == left + whole[:before_bcc] + contract + whole[before_bcc:]


def test_an_envelope_returns_unwrapped_with_its_own_id() -> None:
    body = RetryMessage(message_id="m-1", original_payload=b"hi", original_queue="orders", max_retries=4)
    delivery = published({"max_retries": 9, "a": 1}, body.SerializeToString(), content_type=b"application/protobuf")
    returned = sent_back(delivery)
    assert (returned.content_type, returned.message_id) == (None, b"m-1")
    assert (returned.headers or b"").startswith(named("a", 1) + named("tarry-id", RETRY_ID))
    assert named("max_retries", 4) in (returned.headers or b"")
    assert named("max_retries", 9) not in (returned.headers or b"")


def test_an_envelope_returns_with_its_owner_in_a_header() -> None:
    body = RetryMessage(original_payload=b"hi", original_queue="orders", owner="acme").SerializeToString()
    returned = sent_back(published({"owner": "other"}, body, content_type=b"application/protobuf"))
    assert named("owner", "acme") in (returned.headers or b"")
    assert named("owner", "other") not in (returned.headers or b"")


def test_an_envelope_without_an_id_leaves_the_property_alone() -> None:
    body = RetryMessage(original_queue="orders").SerializeToString()
    properties = {"content_type": b"application/protobuf", "message_id": b"\xff" * 255}
    assert sent_back(published({}, body, **properties)).message_id == b"\xff" * 255


def test_a_return_through_the_exchange_says_so() -> None:
    returned = sent_back(rejected(message_id=b"m-1", exchange="shop"), Destination("exchange", "shop"))
    assert named("tarry-via", "exchange") in (returned.headers or b"")
    assert text("~via:shop") in (returned.headers or b"")


@pytest.mark.parametrize(("own", "told"), [(None, "none"), (0, "0"), (9, "9")])
def test_returned_with_the_policys_priority_and_its_own_in_a_header(own: int | None, told: str) -> None:
    first = sent_back(rejected(priority=own), schedule=FIRST)
    assert (first.priority, (first.headers or b"").count(named("tarry-priority", told))) == (7, 1)


@pytest.mark.parametrize("own", [None, 0, 9])
def test_returned_keeps_its_own_priority_through_every_round(own: int | None) -> None:
    """Also when the policy changes: without `return_priority` the message returns with its own."""
    returned = sent_back(rejected(priority=own), schedule=FIRST)
    for round_ in (2, 3):
        again = rejected("orders", returned.headers or b"", priority=returned.priority)
        returned = sent_back(again, round_=round_, schedule=FIRST)
        assert (returned.headers or b"").count(b"tarry-priority") == 1
    last = sent_back(rejected("orders", returned.headers or b"", priority=returned.priority), round_=4)
    assert (last.priority, b"tarry-priority" in (last.headers or b"")) == (own, False)


def test_headers_that_leave_no_room_for_the_brokers_do_not_fit() -> None:
    """131,072 is the frame; 8,192 are kept free for x-death, 20 go to the frame itself."""
    small = sent_back(rejected("orders", message_id=b"m-1"))
    room = 131_072 - 8_192 - 20 - small.size() - len(named("big", ""))
    assert fits(sent_back(rejected("orders", named("big", "b" * room), message_id=b"m-1")), 131_072)
    assert not fits(sent_back(rejected("orders", named("big", "b" * (room + 1)), message_id=b"m-1")), 131_072)


TAKEN = ("tarry-", "x-first-death-", "x-last-death-")
SPOKEN = {"original_queue", "retry_count", "max_retries", "review_reason", "priority", "job_type", "owner"} | {
    "original_exchange",
    "original_routing_key",
    "error_reason",
    "error_type",
    "error_class",
    "retry_after_ms",
    "next_retry_at_ms",
}
BROKERS = {"x-death", "x-delivery-count", "x-acquired-count", "CC", "BCC"}


def is_free(name: bytes) -> bool:
    known = name.decode(errors="replace")
    return known not in BROKERS | SPOKEN and not known.startswith(TAKEN)


free_names = entry_names.filter(is_free)
taken_names = st.sampled_from(sorted(BROKERS - {"x-death"}) + [f"{prefix}x" for prefix in TAKEN]).map(str.encode)


@given(entries_of(free_names))
def test_any_header_of_any_type_passes_byte_for_byte(entries: list[bytes]) -> None:
    mine = b"".join(entries)
    assert sent_back(rejected("orders", mine, message_id=b"m-1")).headers == mine + ours()


kept_or_not = st.tuples(st.just(True), st.builds(named, free_names, field_values)) | st.tuples(
    st.just(False), st.builds(named, taken_names, field_values)
)


@given(st.lists(kept_or_not, max_size=12))
def test_cutting_leaves_the_others_in_order(entries: list[tuple[bool, bytes]]) -> None:
    everything = b"".join(entry for _, entry in entries)
    left = b"".join(entry for keep, entry in entries if keep)
    assert sent_back(rejected("orders", everything, message_id=b"m-1")).headers == left + ours()


@pytest.mark.parametrize("broken_id", [b"\xff" * 255, b"\x00", b""])
def test_a_message_id_returns_as_it_was(broken_id: bytes) -> None:
    assert sent_back(rejected(message_id=broken_id)).message_id == broken_id


def test_the_keys_name_the_job_type_and_no_automatic_retry_if_it_is_manual() -> None:
    request = parse(published({"original_queue": "orders", "job_type": "pdf.large"}), ACCEPT, new_id)
    assert isinstance(request, Request)
    made = returning(request._replace(retry_id=RETRY_ID), SCHEDULE, 1, NOW, HOME, automatic=False).headers or b""
    assert made.endswith(b"".join(map(text, ["~policy:plain", "~type:pdf%2Elarge", "~to:orders"])))
    assert b"~auto" not in made


def test_the_key_of_a_check_is_on_automatic_retries_of_its_policy() -> None:
    asking = SCHEDULE.policy.model_copy(update={"eligibility": Eligibility.model_validate({"at": "due"})})
    decision = SCHEDULE._replace(policy=asking)
    request = parse(published({"original_queue": "orders"}), ACCEPT, new_id)
    assert isinstance(request, Request)
    made = returning(request, decision, 1, NOW, HOME).headers or b""
    assert made.endswith(b"".join(map(text, ["~check:1m:plain", "~auto", "~policy:plain", "~to:orders"])))
    assert b"~check" not in (returning(request, decision, 1, NOW, HOME, automatic=False).headers or b"")
    assert b"~check" not in (returning(request, SCHEDULE, 1, NOW, HOME).headers or b"")
