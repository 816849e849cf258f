"""What must be true of any delivery whatsoever. It reads tables by itself: it must not trust what it judges."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import BadTableError
from tarry.amqp.properties import Properties
from tarry.contract.header_reader import RefusalError
from tarry.contract.message import Acceptance, Probe, Refused, Request
from tarry.contract.outcome import BadReportError, read_report
from tarry.contract.request import parse
from tarry.contract.returned import fits, for_review, returning
from tarry.core.decide import Schedule, decide
from tarry.core.names import LONGEST_NAME, Destination, Names
from tarry.router.unroutable import read_unroutable
from tarry.service.tap import read_sighting
from tarry.topology.load import load, shipped
from tests.hostile.fuzz.case import Case, Expected
from tests.hostile.fuzz.oracle_wire import check_frames
from tests.unit.contract.test_request_any_input import assert_safe, assert_storable
from tests.unit.contract.wire import array, death, named

NAMES = Names()
ACCEPT = Acceptance(NAMES)
RULES = load(shipped()).rules
NOW = 1_700_000_000_000
FRAME_MAX = 131_072
NEW_ID = "00000000-0000-4000-8000-000000000000"
LONGEST_REASON = 2_000
MOST_ADDED = 4_096
"""Bytes that tarry's own headers may take on a message that returns: ids, times, the way home and the way out."""

SIZES = {"t": 1, "b": 1, "B": 1, "s": 2, "u": 2, "U": 2, "I": 4, "i": 4, "l": 8, "L": 8, "f": 4, "d": 8, "D": 5, "T": 8}
SIZES |= {"V": 0}
BROKERS = (b"x-death", b"x-delivery-count", b"x-acquired-count", b"CC", b"BCC")
OF_A_FAILURE = (b"error_reason", b"error_type", b"error_class", b"retry_after_ms", b"next_retry_at_ms")
REWRITTEN = (*OF_A_FAILURE, b"review_reason", b"retry_count")


def judge(case: Case) -> str:
    """Raises if anything is not as it should be; else what became of it."""
    check_frames(case)
    if case.form == "report":
        return _report(case)
    _beside(case.delivery)
    item = parse(case.delivery, ACCEPT, lambda: NEW_ID)
    if case.expected is not None:
        assert isinstance(item, Request), f"a sound request was refused: {item}"
        _as_expected(item, case.expected)
    if isinstance(item, Probe):
        return "probe"
    _reviewable(item, case)
    if isinstance(item, Refused):
        assert_storable(item.reason)
        assert len(item.reason) <= LONGEST_REASON
        _kept(item, case)
        return "refused"
    return _returns(item, case)


def _kept(item: Refused, case: Case) -> None:
    """What is known of a refused request can be stored, and sent by; the property of its id is never lost."""
    for known in filter(None, (item.message_id, *item.origin)):
        assert_storable(known)
        assert len(known.encode()) <= 4 * LONGEST_NAME
    assert item.message_id or not case.message_id
    assert item.origin.queue or not (any(item.origin) or item.speaks_contract)


def _as_expected(request: Request, expected: Expected) -> None:
    failure = request.failure
    assert (request.origin.queue, request.body) == (expected.queue, expected.body)
    assert (failure.retry_count, failure.max_retries) == (expected.retry_count, expected.max_retries)
    assert (failure.error_reason, failure.error_class) == (expected.error_reason, expected.error_class)
    assert failure.retry_after_ms == expected.retry_after_ms
    assert expected.message_id in (None, request.message_id)


def _report(case: Case) -> str:
    found, refusal = 0, ""
    try:
        report = read_report(case.body)
        found = len(report.outcomes) + len(report.starts)
    except BadReportError as error:
        refusal = str(error)
    assert len(refusal) <= LONGEST_REASON
    if refusal:
        return "refused"
    assert case.mutations or found == case.body.count(b'"id"')
    return "report"


def _beside(delivery: Delivery) -> None:
    """The other two readers of headers: the tap, and the reader of unroutable messages."""
    read_sighting(delivery, lambda _: NOW, NAMES)
    try:
        unroutable = read_unroutable(delivery, ACCEPT)
    except (RefusalError, BadTableError):
        return
    assert not _ours(unroutable.request.origin.queue)


def _reviewable(item: Request | Refused, case: Case) -> None:
    """Whole, in one frame, with everything of the user's: to the byte where the table can be read at all."""
    reason = item.reason if isinstance(item, Refused) else "because"
    reviewed = for_review(item, reason, 1, FRAME_MAX)
    _sane(reviewed)
    assert reviewed.size() + 20 <= FRAME_MAX
    entries = read_table(case.headers)
    found = reviewed.headers or b""
    if entries is None:
        assert case.headers in found or b"left out" in found
        return
    unwanted = (b"CC", b"BCC", b"review_reason")
    own = [
        raw for name, raw in entries if name not in unwanted and not name.startswith((b"tarry-", b"x-")) and name != b""
    ]
    if len(case.headers) < FRAME_MAX - 8_192 and b"tarry-broken-headers" not in found:
        _in_order(own, found)


def _returns(request: Request, case: Case) -> str:
    assert not _ours(request.origin.queue)
    decision = decide(request.failure, RULES, NOW, 0.5)
    if not isinstance(decision, Schedule):
        assert_storable(decision.reason)
        return "review"
    assert decision.due_ms > NOW
    sent = returning(request, decision, request.failure.round + 1, NOW, Destination("queue", request.origin.queue))
    _sane(sent)
    assert len(sent.headers or b"") <= len(case.headers) + MOST_ADDED
    entries = read_table(case.headers)
    assert entries is not None, "a table was read that nobody can read"
    own = b"".join(raw for name, raw in entries if _passes(name, request))
    assert (sent.headers or b"").startswith(own), "a header of the user's own was changed"
    if fits(sent, FRAME_MAX):
        _comes_again(request, sent)
    return "scheduled"


def _ours(queue: str) -> bool:
    """As the broker will read the name: without line ends."""
    return NAMES.is_ours(queue.replace("\r", "").replace("\n", ""))


def _passes(name: bytes, request: Request) -> bool:
    if name in BROKERS or name.startswith((b"x-first-death-", b"x-last-death-")):
        return False
    if name == b"tarry-user-id":
        return request.knows_round and request.delivery.properties.user_id is None
    if name.startswith(b"tarry-") or (request.speaks_contract and name in REWRITTEN):
        return False
    return not (request.form == "envelope" and name == b"max_retries")


def _comes_again(request: Request, sent: Properties) -> None:
    """It fails once more: the same retry, the next round, and still the user's own headers."""
    entries = [raw for name, raw in read_table(sent.headers or b"") or [] if name != b"BCC"]
    origin = request.origin
    died = named("x-death", array(death(origin.queue, "rejected", "retry.deliver", [origin.routing_key])))
    again = Delivery(request.body, Properties(headers=b"".join([*entries, died])), "retry.intake", origin.routing_key)
    item = parse(again, ACCEPT, lambda: NEW_ID)
    if len(entries) >= 4_080:
        return  # tarry's own headers may be what is too many
    assert isinstance(item, Request), f"its second round was refused: {item}"
    assert (item.retry_id, item.origin, item.knows_round) == (request.retry_id, origin, True)
    assert item.failure.round == request.failure.round + 1


def _sane(properties: Properties) -> None:
    assert_safe(properties)
    assert read_table(properties.headers or b"") is not None


def _in_order(own: list[bytes], found: bytes) -> None:
    place = 0
    for raw in own:
        place = found.find(raw, place)
        assert place >= 0, f"a header of the user's own is not in review: {raw[:80]!r}"
        place += len(raw)


def read_table(raw: bytes) -> list[tuple[bytes, bytes]] | None:
    """Names and entries, or None if it is no table."""
    try:
        return list(_entries(raw))
    except (IndexError, KeyError, struct.error):
        return None


def _entries(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = 0
    while place < len(raw):
        kind = place + 1 + raw[place]
        letter = chr(raw[kind])
        end = kind + 1 + (4 + struct.unpack_from(">I", raw, kind + 1)[0] if letter in "SxAF" else SIZES[letter])
        if end > len(raw):
            raise IndexError
        yield raw[place + 1 : kind], raw[place:end]
        place = end
