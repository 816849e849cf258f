"""tarry's own headers: each of them with values of every wrong kind, lenient and strict."""

from __future__ import annotations

import struct
import sys

import pytest

from tarry.amqp.field_tables import pick
from tarry.contract import headers as h
from tarry.contract.header_reader import FAR_FUTURE_MS, LONGEST_TEXT, RefusalError
from tarry.contract.identity import MOST_ROUNDS
from tarry.contract.retry_headers import RetryHeaders, read_retry_headers
from tarry.core.policy import MOST_RETRIES
from tests.unit.contract.wire import array, counted, integer, named, table, text

ID = "0f8fad5b-d9cb-469f-a165-70867728950e"

TEXTS = {
    h.ID: "id_text",
    h.QUEUE: "queue",
    h.EXCHANGE: "exchange",
    h.KEY: "routing_key",
    h.VIA: "via",
    h.OWN_PRIORITY: "own_priority",
}
NUMBERS = {
    h.ROUND: ("round", MOST_ROUNDS),
    h.COUNT: ("retry_count", MOST_ROUNDS),
    h.MOST: ("max_retries", MOST_RETRIES),
    h.DUE: ("due_ms", FAR_FUTURE_MS),
    h.SINCE: ("since_ms", FAR_FUTURE_MS),
    h.TIMES_UNROUTABLE: ("times_unroutable", MOST_ROUNDS),
}
ALL = {name.encode() for name in (*TEXTS, *NUMBERS, h.FORM)}


def double(value: float) -> bytes:
    return b"d" + struct.pack(">d", value)


NEITHER = {
    "bytes that are not UTF-8": counted(b"x", b"\xff\xfe"),
    "text that is not UTF-8": text(b"\xff\xfe"),
    "a flag": b"t\x01",
    "a decimal": b"D\x00" + struct.pack(">i", 7),
    "a timestamp": b"T" + struct.pack(">Q", 7),
    "a table": table(named("a", 1)),
    "an array": array(integer(1)),
}
NO_TEXT = NEITHER | {"an integer": integer(7), "a double": double(7.0)}
NO_NUMBER = NEITHER | {
    "words": text("seven"),
    "no text": text(""),
    "a fraction": double(0.5),
    "infinity": double(float("inf")),
    "not a number": double(float("nan")),
    "too many digits": text("1" * 20),
}


def read(*entries: bytes) -> RetryHeaders:
    return read_retry_headers(pick(b"".join(entries), ALL))


def refusal(found: RetryHeaders, name: str) -> str:
    with pytest.raises(RefusalError) as refused:
        found.check(name)
    return str(refused.value)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_header_is_read(name: str) -> None:
    for value in (text("orders"), counted(b"x", b"orders")):
        found = read(named(name, value))
        assert getattr(found, TEXTS[name]) == "orders"
        found.check(*TEXTS, *NUMBERS)


@pytest.mark.parametrize("kind", NO_TEXT)
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_header_of_a_wrong_kind_is_none_and_refused(name: str, kind: str) -> None:
    found = read(named(name, NO_TEXT[kind]))
    assert getattr(found, TEXTS[name]) is None
    assert refusal(found, name) == f"the header `{name}` must be UTF-8 text"
    found.check(*({*TEXTS, *NUMBERS} - {name}))


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_header_is_cut_to_the_longest_text(name: str) -> None:
    longest, longer = "x" * LONGEST_TEXT, "x" * (LONGEST_TEXT + 1)
    assert getattr(read(named(name, longest)), TEXTS[name]) == longest
    assert getattr(read(named(name, longer)), TEXTS[name]) == "x" * (LONGEST_TEXT - 1) + "…"
    assert getattr(read_retry_headers(pick(named(name, longer), ALL), sys.maxsize), TEXTS[name]) == longer


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_header_is_read_as_any_client_writes_it(name: str) -> None:
    attribute, most = NUMBERS[name]
    for value in (
        integer(7),
        text("7"),
        double(7.0),
        b"B\x07",
        b"i" + struct.pack(">I", 7),
        b"L" + struct.pack(">Q", 7),
    ):
        found = read(named(name, value))
        assert getattr(found, attribute) == 7
        found.check(*TEXTS, *NUMBERS)
    for limit in (0, most):
        found = read(named(name, limit))
        assert getattr(found, attribute) == limit
        found.check(name)


@pytest.mark.parametrize("kind", NO_NUMBER)
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_header_of_a_wrong_kind_is_none_and_refused(name: str, kind: str) -> None:
    found = read(named(name, NO_NUMBER[kind]))
    assert getattr(found, NUMBERS[name][0]) is None
    assert refusal(found, name) == f"the header `{name}` must be a whole number"
    found.check(*({*TEXTS, *NUMBERS} - {name}))


@pytest.mark.parametrize("name", NUMBERS)
def test_a_negative_number_is_none_and_refused(name: str) -> None:
    attribute, most = NUMBERS[name]
    for value in (integer(-1), text("-1"), double(-1.0), integer(-(2**63))):
        found = read(named(name, value))
        assert getattr(found, attribute) is None
        assert refusal(found, name).endswith(f": it must be from 0 to {most}")


@pytest.mark.parametrize("name", NUMBERS)
def test_an_absurd_number_is_kept_and_refused(name: str) -> None:
    attribute, most = NUMBERS[name]
    for value, number in ((integer(most + 1), most + 1), (double(1e300), int(1e300)), (b"L" + b"\xff" * 8, 2**64 - 1)):
        found = read(named(name, value))
        assert getattr(found, attribute) == number
        assert refusal(found, name) == f"`{name}` is {number}: it must be from 0 to {most}"


def test_an_absent_header_is_none_and_not_refused() -> None:
    nothing = RetryHeaders._make([*[None] * 13, False, {}])
    assert read() == nothing
    assert read(*(named(name, b"V") for name in (*TEXTS, *NUMBERS))) == nothing
    assert (
        read_retry_headers(pick(named("tarry-idea", "x") + named("Tarry-id", "x"), {b"tarry-idea", b"Tarry-id"}))
        == nothing
    )
    read().check(*TEXTS, *NUMBERS)


def test_a_header_given_twice_counts_as_its_last_value() -> None:
    assert read(named(h.ROUND, "no number"), named(h.ROUND, 3)) == read(named(h.ROUND, 3))
    assert refusal(read(named(h.ROUND, 3), named(h.ROUND, "no number")), h.ROUND)


def test_the_form_counts_whatever_its_value() -> None:
    assert not read().contract
    for value in (text("contract"), text(""), b"V", integer(0), text(b"\xff")):
        assert read(named(h.FORM, value)).contract


@pytest.mark.parametrize("written", [ID, ID.upper(), ID.replace("-", ""), f"{{{ID}}}", f"urn:uuid:{ID}"])
def test_an_id_has_one_canonical_form(written: str) -> None:
    found = read(named(h.ID, written))
    assert (found.id_text, found.retry_id, found.strict_id()) == (written, ID, ID)


@pytest.mark.parametrize("written", ["", "x", ID[:-1], f"{ID}0", f"{ID}\n", "\0", "{" * LONGEST_TEXT + ID])
def test_a_text_that_is_no_uuid_is_no_id(written: str) -> None:
    found = read(named(h.ID, written))
    assert found.retry_id is None
    found.check(h.ID)  # it is text
    with pytest.raises(RefusalError, match="the header `tarry-id` is not a retry id: "):
        found.strict_id()


def test_an_id_that_is_absent_or_no_text_is_refused_if_it_is_needed() -> None:
    for found in (read(), read(named(h.ID, b"V"))):
        with pytest.raises(RefusalError, match="the header `tarry-id` is not a retry id: ''"):
            found.strict_id()
    with pytest.raises(RefusalError, match="the header `tarry-id` must be UTF-8 text"):
        read(named(h.ID, integer(1))).strict_id()


def test_check_refuses_the_first_of_the_headers_named() -> None:
    found = read(named(h.ROUND, -1), named(h.QUEUE, 1))
    assert refusal(found, h.QUEUE) == "the header `tarry-queue` must be UTF-8 text"
    with pytest.raises(RefusalError, match="tarry-round"):
        found.check(h.DUE, h.ROUND, h.QUEUE)
    found.check(h.DUE, h.ID)
