from __future__ import annotations

import pytest

from tarry.amqp.field_tables import pick
from tarry.contract import headers as h
from tarry.contract.trace import TraceContext, parse_trace, span_id, trace_of, trace_of_headers
from tests.support.tracing import SAMPLED, SPAN, TRACE
from tests.unit.contract.wire import counted, headers, named


def test_trace_reads_what_the_producer_wrote() -> None:
    assert parse_trace(SAMPLED, "vendor=1") == TraceContext(TRACE, SPAN, sampled=True, state="vendor=1")
    assert parse_trace(SAMPLED) == TraceContext(TRACE, SPAN, sampled=True)


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("02", False), ("03", True), ("ff", True)])
def test_trace_is_sampled_by_the_lowest_bit_of_its_flags(flags: str, sampled: bool) -> None:  # noqa: FBT001
    found = parse_trace(f"00-{TRACE}-{SPAN}-{flags}")
    assert found is not None
    assert found.sampled is sampled


def test_trace_of_a_later_version_may_have_more_fields() -> None:
    assert parse_trace(f"cc-{TRACE}-{SPAN}-01-more") == TraceContext(TRACE, SPAN, sampled=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        SAMPLED.upper(),
        SAMPLED + "-more",
        SAMPLED + "\n",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        17,
        None,
    ],
)
def test_trace_that_is_not_valid_counts_as_absent(text: object) -> None:
    assert parse_trace(text) is None
    assert trace_of_headers({h.TRACEPARENT: text}) is None


def test_trace_is_read_from_a_header_table() -> None:
    table = headers({"traceparent": SAMPLED, "tracestate": "a=1", "other": 7})
    assert trace_of(pick(table, h.READ)) == TraceContext(TRACE, SPAN, sampled=True, state="a=1")
    assert trace_of(pick(headers({"other": 7}), h.READ)) is None


@pytest.mark.parametrize("value", [counted(b"S", b"\xff\xfe"), counted(b"F", b""), b"V", b"t\x01"])
def test_trace_of_another_type_counts_as_absent(value: bytes) -> None:
    assert trace_of(pick(named("traceparent", value), h.READ)) is None
    broken_state = named("traceparent", SAMPLED) + named("tracestate", value)
    assert trace_of(pick(broken_state, h.READ)) == TraceContext(TRACE, SPAN, sampled=True)


def test_span_ids_are_different_for_every_span() -> None:
    ids = {
        span_id(name, retry, round_, since)
        for name in ("decide", "publish", "wait")
        for retry in ("a", "b")
        for round_ in (1, 2)
        for since in (5, 6)
    }
    assert len(ids) == 24
    assert all(len(one) == 16 and int(one, 16) for one in ids)
