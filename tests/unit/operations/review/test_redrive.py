"""From a message in review to the redriven one: headers, keys and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import pick, table, walk, walk_array
from tarry.amqp.properties import Properties
from tarry.contract.message import Acceptance
from tarry.core.decide import Rulebook
from tarry.core.ladder import Ladder
from tarry.core.names import Names
from tarry.core.policy import Policy
from tarry.operations.review.message import ReviewHeaders, key_of, read_review_headers
from tarry.operations.review.redrive import CannotRedriveError, Edits, RedriveContext, Redriven, RedriveOptions, redrive

ID = "6f1c0a3e-0000-4000-8000-000000000001"
NOW = 1_800_000_000_000
RULES = Rulebook((Policy(name="default", schedule=["2s"], max_retries=3),), Ladder(), frozenset({2_000}))
HOUSE = RedriveContext(Acceptance(Names(), destinations=("orders*",)), RULES, 131_072)


def in_review(body: bytes = b"body", /, **headers: Any) -> Delivery:
    ours = {
        "review_reason": "exhausted",
        "tarry-id": ID,
        "tarry-round": 4,
        "tarry-count": 3,
        "tarry-queue": "orders",
        "tarry-exchange": "shop",
        "tarry-key": "order.new",
        "tarry-since-ms": 5,
    }
    said = {name: value for name, value in (ours | headers).items() if value is not ...}
    return Delivery(body, Properties(headers=table(said), message_id=b"m"), "retry.review", "order.new")


def sent(delivery: Delivery, **options: Any) -> Redriven:
    return redrive(delivery, read_review_headers(delivery), RedriveOptions(**options), HOUSE, NOW)


def headers_of(found: Redriven) -> dict[str, Any]:
    fields = walk(found.message.properties.headers or b"")
    return {name.decode(): one.integer() if one.kind == b"l" else one.text() for name, one in fields}


def keys_of(found: Redriven) -> list[str | None]:
    array = pick(found.message.properties.headers or b"", {b"BCC"})[b"BCC"]
    return [item.text() for item in walk_array(array.value)]


def test_it_goes_on_in_its_round_and_counts_anew() -> None:
    found = sent(in_review(color="blue"))
    headers = headers_of(found)
    assert (found.message.exchange, found.message.routing_key, found.message.body) == (
        "retry.relay",
        "order.new",
        b"body",
    )
    assert keys_of(found) == ["~in:ladder", f"~id:{ID}:4", "~policy:default", "~to:orders"]
    assert (headers["tarry-round"], headers["tarry-count"], headers["tarry-max-retries"]) == (4, 0, 3)
    assert (headers["tarry-due-ms"], headers["tarry-since-ms"]) == (NOW, NOW)
    assert headers["color"] == "blue"
    assert "review_reason" not in headers
    assert (found.tier, found.delay_ms, found.body) == ("retry.relay", 0, None)


def test_one_more_attempt_keeps_count_and_age() -> None:
    headers = headers_of(sent(in_review(), reset_attempts=False))
    assert (headers["tarry-count"], headers["tarry-since-ms"]) == (3, 5)


@pytest.mark.parametrize(("said", "own", "told"), [({}, 3, "3"), ({}, None, "none"), ({"tarry-priority": "2"}, 3, "2")])
def test_redrive_returns_with_the_policys_priority(said: dict[str, str], own: int | None, told: str) -> None:
    """Tarry puts a message in review with its own priority; one that was moved there by hand has it in the header."""
    first = Policy(name="first", schedule=["2s"], max_retries=3, return_priority=7)
    house = replace(HOUSE, rules=replace(RULES, policies=(first,)))
    delivery = in_review(**said)
    delivery.properties.priority = own
    found = redrive(delivery, read_review_headers(delivery), RedriveOptions(), house, NOW)
    assert (found.message.properties.priority, headers_of(found)["tarry-priority"]) == (7, told)


def test_a_delay_goes_through_the_tiers() -> None:
    found = sent(in_review(), delay_ms=2_000)
    assert (found.message.exchange, found.tier, found.due_ms) == ("retry.delay", "retry.delay.2s", NOW + 2_000)
    assert keys_of(found)[0] == "~in:2s"


def test_a_redirect_names_the_new_queue_everywhere() -> None:
    found = sent(in_review(), to="orders.eu")
    assert keys_of(found)[-1] == "~to:orders.eu"
    assert headers_of(found)["tarry-queue"] == "orders.eu"


def test_an_edit_changes_only_what_it_names() -> None:
    found = sent(in_review(color="blue", shape="round"), edits=Edits({"color": "red"}, ("shape",), b"new"))
    headers = headers_of(found)
    assert (headers["color"], "shape" in headers, found.message.body, found.body) == ("red", False, b"new", b"new")


@pytest.mark.parametrize(
    ("delivery", "options", "reason"),
    [
        (in_review(**{"tarry-queue": ...}), {}, "name a queue with --to"),
        (in_review(**{"tarry-id": ...}), {}, "no tarry-id"),
        (in_review(**{"tarry-queue": "bills"}), {}, "outside the topology's `destinations`"),
        (in_review(**{"tarry-queue": "retry.audit"}), {}, "tarry's or the broker's own"),
        (in_review(b"x" * (8 * 2**20 + 1)), {}, "retries carry"),
        (in_review(large="x" * 130_000), {}, "no room"),
    ],
)
def test_what_cannot_be_sent_on_says_why(delivery: Delivery, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(CannotRedriveError, match=reason):
        sent(delivery, **options)


def test_a_reserved_routing_key_does_not_travel() -> None:
    refused = Delivery(b"", in_review(**{"tarry-queue": ..., "tarry-key": ...}).properties, "", "~to:orders")
    assert sent(refused, to="orders").message.routing_key == "orders"


@pytest.mark.parametrize(
    "headers",
    [b"\x05", table({"tarry-id": "no uuid", "tarry-round": 1}), table({"tarry-id": ID, "tarry-round": -1}), b""],
)
def test_a_card_that_cannot_be_read_is_nobodys(headers: bytes) -> None:
    delivery = Delivery(b"", Properties(headers=headers))
    assert key_of(delivery) is None
    assert read_review_headers(delivery).key is None


def test_a_card_reads_what_is_there() -> None:
    assert read_review_headers(in_review()) == ReviewHeaders(
        (ID, 4), "m", "orders", "shop", "order.new", "exhausted", 3, None, 5
    )


@pytest.mark.parametrize("absurd", [1e300, 2**62])
def test_redrive_reads_absurd_numbers_as_absent(absurd: float) -> None:
    delivery = in_review(**{"tarry-since-ms": absurd, "tarry-count": absurd})
    found = headers_of(sent(delivery, reset_attempts=False))
    assert (found["tarry-id"], found["tarry-count"], found["tarry-since-ms"]) == (ID, 0, NOW)
