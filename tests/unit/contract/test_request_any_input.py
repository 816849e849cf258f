from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import scan
from tarry.amqp.properties import Properties
from tarry.contract.message import Acceptance, Probe, Refused, Request
from tarry.contract.request import parse
from tarry.contract.retry_pb2 import RetryMessage
from tarry.contract.returned import for_review, returning
from tarry.core.decide import Schedule, decide
from tarry.core.names import Destination
from tarry.topology.load import load, shipped
from tests.unit.contract.generated import KINDS, bad_request, deliveries
from tests.unit.contract.wire import ACCEPT, NAMES, new_id, rejected

NOW = 1_700_000_000_000
FRAME_MAX = 131_072
RULES = load(shipped()).rules


@settings(max_examples=500)
@given(deliveries)
def test_any_delivery_is_understood_or_refused_and_can_be_published(delivery: Delivery) -> None:
    item = parse(delivery, ACCEPT, new_id)
    if isinstance(item, Probe):
        return
    assert_safe(for_review(item, "because", 1, FRAME_MAX))
    if isinstance(item, Request):
        decision = decide(item.failure, RULES, NOW, 0.5)
        if isinstance(decision, Schedule):
            assert_safe(returning(item, decision, 1, NOW, Destination("queue", item.origin.queue)))
    else:
        assert_storable(item.reason)


@given(st.binary(max_size=200), st.sampled_from(["", "retry.intake"]))
def test_random_bytes_for_a_table_are_refused_at_the_most(raw: bytes, exchange: str) -> None:
    """And in review they are still there, in a wrapper that a broker can read."""
    delivery = Delivery(b"", Properties(headers=raw), exchange, "k")
    item = parse(delivery, ACCEPT, new_id)
    assert isinstance(item, Refused | Request)
    reviewed = for_review(item, "because", 1, FRAME_MAX)
    assert_safe(reviewed)
    if isinstance(item, Refused) and "table is broken: a field" in item.reason:
        assert raw in (reviewed.headers or b"")


@given(st.binary(max_size=300), st.sampled_from([b"application/x-protobuf", b"application/vnd.tarry.retry+json"]))
def test_random_bytes_for_an_envelope_are_refused_at_the_most(body: bytes, content_type: bytes) -> None:
    item = parse(Delivery(body, Properties(content_type=content_type), "", "retry.scheduled"), ACCEPT, new_id)
    assert isinstance(item, Refused | Request)
    if isinstance(item, Refused):
        assert_storable(item.reason)


@given(st.text(min_size=1, max_size=300), st.binary(max_size=50))
def test_an_envelope_with_any_queue_name_and_payload(queue: str, payload: bytes) -> None:
    body = RetryMessage(original_queue=queue, original_payload=payload).SerializeToString()
    delivery = Delivery(body, Properties(content_type=b"application/protobuf"), "", "retry.scheduled")
    item = parse(delivery, ACCEPT, new_id)
    assert isinstance(item, Refused) or (item.origin.queue, item.body) == (queue, payload)  # type: ignore[union-attr]


def test_every_generated_bad_request_is_refused_with_a_reason() -> None:
    """What the acceptance test sends to a live broker; here each kind is seen to be bad for its own sake."""
    random, seen = Random(4), set()
    accept = Acceptance(NAMES, destinations=("good",))
    for serial in range(2_000):
        bad = bad_request(random, serial)
        item = parse(Delivery(bad.body, bad.properties, bad.exchange, bad.key), accept, new_id)
        assert isinstance(item, Refused), (bad, item)
        assert_storable(item.reason)
        seen.add(bad.kind)
    assert seen == KINDS


def test_a_broken_table_is_whole_in_review() -> None:
    broken = b"\x01a?not a table"
    item = parse(Delivery(b"", Properties(headers=broken), "", "k"), ACCEPT, new_id)
    assert isinstance(item, Refused)
    reviewed = for_review(item, item.reason, 0, FRAME_MAX).headers or b""
    assert reviewed.startswith(b"\x14tarry-broken-headersx\x00\x00\x00\x0e" + broken)
    assert b"review_reason" in reviewed


def assert_safe(properties: Properties) -> None:
    """What a broker would close the channel or the connection over."""
    names = [name for name, _, _, _ in scan(properties.headers or b"")]
    assert names.count(b"CC") == 0
    assert names.count(b"BCC") <= 1
    assert len(set(names) & {b"x-death"}) <= 1
    assert (properties.user_id, properties.expiration, properties.delivery_mode) == (None, None, 2)
    assert properties.reply_to != b"amq.rabbitmq.reply-to"
    assert Properties.decode(b"".join(properties.encode())) == properties


def assert_storable(reason: str) -> None:
    assert reason
    assert "\x00" not in reason
    assert reason.encode()


def test_the_check_itself_would_notice_a_foreign_user_id() -> None:
    """assert_safe is what three tests rest on; it must be able to fail."""
    with pytest.raises(AssertionError):
        assert_safe(replace(rejected().properties, user_id=b"alice", delivery_mode=2))
