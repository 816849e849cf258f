from __future__ import annotations

from dataclasses import replace

import pytest

from tarry.amqp.field_tables import array_entry, entry, pick, walk_array
from tarry.amqp.properties import Properties
from tarry.audit.recover import CannotRebuildError, StoredMessage, next_round, rebuild
from tarry.core.decide import Rulebook
from tarry.core.ladder import Ladder
from tarry.core.names import Names

RULES = Rulebook((), Ladder(125, 8, 4), frozenset({8_000}))
OLD_WAY = ("~in:8s", "~3>0", "~0:3", "~id:6f1c:2", "~to:orders")
USERS = entry("a", "b") + b"\x01fd" + b"\x3f\xf8\x00\x00\x00\x00\x00\x00"


def stored(due_ms: int, headers: bytes | None = None) -> StoredMessage:
    table = USERS + entry("tarry-id", "6f1c") + array_entry("BCC", OLD_WAY) if headers is None else headers
    properties = Properties(content_type=b"text/plain", headers=table, delivery_mode=2, message_id=b"m1")
    return StoredMessage("6f1c", 2, "own.key", "orders", due_ms, b"body", b"".join(properties.encode()))


def keys(headers: bytes | None) -> list[str | None]:
    return [item.text() for item in walk_array(pick(headers or b"", {b"BCC"})[b"BCC"].value)]


@pytest.mark.parametrize(
    ("left_ms", "way", "tier", "delay_ms"),
    [
        (8_000, ["~in:8s", "~3>end"], "retry.delay.8s", 8_000),
        (7_999, ["~in:ladder", "~3>2", "~2:1", "~1>end"], "retry.ladder.2.8s", 8_000),
        (1_001, ["~in:ladder", "~3>1", "~1:1", "~0:1"], "retry.ladder.1.1s", 1_125),
        (0, ["~in:ladder", "~3>end"], "retry.relay", 0),
        (-5_000, ["~in:ladder", "~3>end"], "retry.relay", 0),
    ],
)
def test_the_way_is_for_what_is_left_and_never_shorter(left_ms: int, way: list[str], tier: str, delay_ms: int) -> None:
    made = rebuild(stored(100_000), RULES, Names(), 100_000 - left_ms)
    assert keys(made.message.properties.headers) == [*way, "~id:6f1c:2", "~to:orders"]
    assert (made.tier, made.delay_ms) == (tier, delay_ms)


def test_all_else_is_as_it_was_to_the_byte() -> None:
    message = rebuild(stored(0), RULES, Names(), 0).message
    assert (message.exchange, message.routing_key, message.body) == ("retry.delay", "own.key", b"body")
    assert message.token == "6f1c:2"
    assert (message.properties.content_type, message.properties.message_id) == (b"text/plain", b"m1")
    assert (message.properties.headers or b"").startswith(USERS + entry("tarry-id", "6f1c"))


def test_a_destination_with_a_hashed_key_or_an_exchange_keeps_it() -> None:
    for key in ("~to#3f2a", "~via:events", "~via#77"):
        made = rebuild(stored(0, array_entry("BCC", ("~in:8s", "~id:6f1c:2", key))), RULES, Names(), 0)
        assert made.returns_to == key


def test_what_has_no_way_home_is_refused() -> None:
    with pytest.raises(CannotRebuildError, match="do not say where it returns"):
        rebuild(stored(0, USERS), RULES, Names(), 0)
    broken = StoredMessage("6f1c", 2, "k", "orders", 0, b"", b"\x20")
    with pytest.raises(CannotRebuildError, match="damaged"):
        rebuild(broken, RULES, Names(), 0)
    with pytest.raises(CannotRebuildError, match="do not say where it returns"):
        rebuild(stored(0, array_entry("BCC", ("~in:8s", "~id:6f1c:2"))), RULES, Names(), 0)


def test_a_retry_now_is_the_next_round_due_now_past_the_cancelled_gate() -> None:
    table = USERS + entry("tarry-round", 2) + entry("tarry-due-ms", 99_000) + array_entry("BCC", OLD_WAY)
    message = next_round(stored(99_000, table), Names(), 5_000)
    assert (message.exchange, message.routing_key, message.token) == ("retry.relay", "own.key", "6f1c:3")
    assert keys(message.properties.headers) == ["~id:6f1c:3", "~to:orders"]
    headers = message.properties.headers or b""
    assert headers.startswith(USERS)
    found = pick(headers, {b"tarry-round", b"tarry-due-ms"})
    assert {name: one.integer() for name, one in found.items()} == {b"tarry-round": 3, b"tarry-due-ms": 5_000}
    assert (message.properties.message_id, message.body) == (b"m1", b"body")


def test_a_retry_now_keeps_its_policy_and_type_and_is_not_automatic() -> None:
    way = ("~in:8s", "~id:6f1c:2", "~auto", "~policy:gold", "~type:pdf", "~to:orders")
    message = next_round(stored(99_000, array_entry("BCC", way)), Names(), 5_000)
    assert keys(message.properties.headers) == ["~id:6f1c:3", "~policy:gold", "~type:pdf", "~to:orders"]


def test_a_rebuilt_message_keeps_all_that_it_can_be_paused_by() -> None:
    way = ("~in:8s", "~id:6f1c:2", "~auto", "~policy:gold", "~type:pdf", "~to:orders")
    rebuilt = rebuild(stored(99_000, array_entry("BCC", way)), RULES, Names(), 98_000)
    assert keys(rebuilt.message.properties.headers)[-5:] == [*way[1:]]
    assert rebuilt.returns_to == "~to:orders"


def test_a_rest_beyond_the_ladder_is_rebuilt_as_the_next_leg() -> None:
    longest = RULES.ladder.longest_ms
    made = rebuild(replace(stored(2 * longest), leg=3), RULES, Names(), 0)
    headers = made.message.properties.headers
    assert keys(headers)[-2:] == ["~id:6f1c:2", "~layover"]
    assert b"~to:orders" in (headers or b"")
    assert made.leg is not None
    assert (made.leg.leg, made.leg.wait_ms, made.leg.delay_ms) == (4, longest, 2 * longest)


def test_a_last_leg_is_rebuilt_with_a_number_so_that_the_lost_one_is_dropped() -> None:
    made = rebuild(replace(stored(1_000), leg=3), RULES, Names(), 0)
    assert keys(made.message.properties.headers)[-1] == "~to:orders"
    assert made.leg is not None
    assert (made.leg.leg, made.leg.wait_ms) == (4, None)
    assert rebuild(stored(1_000), RULES, Names(), 0).leg is None
