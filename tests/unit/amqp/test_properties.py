from __future__ import annotations

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.amqp.field_tables import BadTableError
from tarry.amqp.properties import Properties
from tests.unit.contract.wire import headers

_short = st.none() | st.binary(max_size=255)
_octet = st.none() | st.integers(0, 255)

properties = st.builds(
    Properties,
    content_type=_short,
    content_encoding=_short,
    headers=st.none() | st.binary(max_size=300),
    delivery_mode=_octet,
    priority=_octet,
    correlation_id=_short,
    reply_to=_short,
    expiration=_short,
    message_id=_short,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=_short,
    user_id=_short,
    app_id=_short,
    cluster_id=_short,
)


@given(properties)
def test_what_is_encoded_is_decoded_the_same(some: Properties) -> None:
    raw = b"".join(some.encode())
    assert Properties.decode(raw) == some
    assert Properties.decode(b"frame" + raw, 5) == some
    assert some.size() == len(raw)


def test_the_bytes_are_those_of_another_client() -> None:
    theirs = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="gzip",
        headers={"a": "b"},
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="5",
        message_id="m",
        timestamp=7,
        type="t",
        user_id="u",
        app_id="app",
        cluster_id="x",
    )
    ours = Properties(
        content_type=b"text/plain",
        content_encoding=b"gzip",
        headers=headers({"a": "b"}),
        delivery_mode=2,
        priority=3,
        correlation_id=b"c",
        reply_to=b"r",
        expiration=b"5",
        message_id=b"m",
        timestamp=7,
        type=b"t",
        user_id=b"u",
        app_id=b"app",
        cluster_id=b"x",
    )
    assert b"".join(theirs.encode()) == b"".join(ours.encode())


@given(st.binary(max_size=60))
def test_random_bytes_are_properties_or_a_broken_table(raw: bytes) -> None:
    try:
        found = Properties.decode(raw)
    except BadTableError:
        return
    assert Properties.decode(b"".join(found.encode())) == found


@pytest.mark.parametrize(
    "raw", [b"", b"\x80", b"\x80\x00", b"\x80\x00\x05abc", b"\x20\x00\x00\x00\x00\x09abc", b"\x00\x01"]
)
def test_properties_that_are_cut_off(raw: bytes) -> None:
    with pytest.raises(BadTableError):
        Properties.decode(raw)
