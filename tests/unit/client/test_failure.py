from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import walk
from tarry.amqp.properties import Properties
from tarry.client import Attempt, Classes, Options, Verdict
from tarry.client.failure import describe, owner_of
from tarry.client.request import FRAME_MAX, Incoming, request, retry_request
from tarry.contract.message import Acceptance, Request
from tarry.contract.request import parse
from tarry.contract.safety import in_frame
from tarry.core.fingerprint import fingerprint
from tarry.core.names import Names

NOW = 1_700_000_000_000
ID = "0a0a0a0a-0b0b-5c0c-8d0d-0e0e0e0e0e0e"


class CardDeclinedError(Exception):
    pass


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def incoming(headers: dict[str, Any] | None = None, **properties: Any) -> Incoming:
    found = headers or {}
    attempt = Attempt.read(found, "orders", "m-1")
    return Incoming("orders", "shop", "order.new", b"body", found, Properties(message_id=b"m-1", **properties), attempt)


def understood(made: Properties) -> Request:
    """As the router understands it."""
    found = parse(Delivery(b"body", made, "retry.intake", "7"), Acceptance(Names()), lambda: "random")
    assert isinstance(found, Request), found
    return found


def test_the_type_the_text_and_the_fingerprint_are_told() -> None:
    failure = describe(CardDeclinedError("card 4711 declined"), Options(), NOW)
    assert failure.error_type == f"{__name__}.CardDeclinedError"
    assert failure.error_reason == "card 4711 declined"
    assert failure.fingerprint == fingerprint(failure.error_type, "card 12 declined")
    assert describe(ValueError("x"), Options(), NOW).error_type == "ValueError"


def test_the_text_is_bounded() -> None:
    failure = describe(ValueError("x" * 10_000), Options(longest_reason=50), NOW)
    assert len(failure.error_reason) == 50
    assert failure.error_reason.endswith("…")


def test_secrets_are_taken_out_before_the_text_is_cut() -> None:
    options = Options(redact=lambda text: text.replace("s3cret", "***"), longest_reason=20)
    assert describe(ValueError("password s3cret is wrong"), options, NOW).error_reason == "password *** is wro…"


def test_a_hook_that_fails_withholds_the_text_and_not_the_retry() -> None:
    def redact(_: str) -> str:
        raise KeyError("oops")

    reason = describe(ValueError("s3cret"), Options(redact=redact), NOW).error_reason
    assert "s3cret" not in reason
    assert "KeyError" in reason


def test_errors_that_cannot_be_told_are_told_as_such() -> None:
    assert describe(MuteError(), Options(), NOW).error_reason == "(its text could not be produced)"
    assert describe(ValueError("a\x00b\ud800"), Options(), NOW).error_reason == "a\\x00b\\ud800"

    def judge(_: BaseException) -> Verdict:
        raise RuntimeError("oops")

    assert describe(ValueError(), Options(classes=Classes({ValueError: judge})), NOW).verdict == Verdict()


def test_the_router_understands_a_first_request() -> None:
    made = request(
        incoming({"tenant": "acme", "x-death": [{"queue": "q"}]}), describe(ValueError("no"), Options(), NOW)
    )
    found = understood(made)
    assert (found.form, found.message_id, found.knows_round) == ("headers", "m-1", False)
    assert (found.origin.queue, found.origin.exchange, found.origin.routing_key) == ("orders", "shop", "order.new")
    assert (found.failure.error_type, found.failure.error_reason, found.failure.retry_count) == ("ValueError", "no", 0)
    assert b"x-death" not in dict(walk(made.headers or b""))


def test_the_router_knows_the_round_of_a_later_one() -> None:
    own = {"tarry-id": ID, "tarry-round": 2, "tarry-count": 1, "tarry-queue": "orders", "retry_count": 99}
    found = understood(request(incoming(own), describe(ValueError("no"), Options(), NOW)))
    assert (found.retry_id, found.knows_round) == (ID, True)
    assert (found.failure.round, found.failure.retry_count) == (2, 1)


def test_what_would_do_harm_does_not_travel() -> None:
    made = request(
        incoming(user_id=b"guest", expiration=b"1000", reply_to=b"amq.rabbitmq.reply-to"),
        describe(ValueError("no"), Options(), NOW),
    )
    assert (made.user_id, made.expiration, made.reply_to, made.delivery_mode) == (None, None, None, 2)


def test_headers_near_the_limit_shorten_the_reason_not_the_message() -> None:
    near = {"large": "x" * (FRAME_MAX - 700)}
    failure = describe(ValueError("y" * 900), Options(), NOW)
    made = request(incoming(near), failure)
    assert in_frame(made, FRAME_MAX)
    assert len(understood(made).failure.error_reason or "") == 80


@pytest.mark.parametrize(
    "nonsense", [{"tarry-id": 7}, {"tarry-id": ID, "tarry-round": "x", "tarry-due-ms": 2**62, "tarry-count": -1}]
)
def test_headers_that_make_no_sense_count_as_not_said(nonsense: dict[str, Any]) -> None:
    found = Attempt.read(nonsense | {"tarry-queue": "orders"}, "orders")
    assert (found.round, found.retry_count, found.due) == (0, 0, None)


def test_a_message_returned_through_its_exchange_keeps_counting_elsewhere() -> None:
    own = {"tarry-id": ID, "tarry-round": 2, "tarry-count": 2, "tarry-queue": "other", "tarry-via": "exchange"}
    found = Attempt.read(own, "orders", "m-1")
    assert (found.retry_id, found.retry_count, found.number) == (None, 2, 3)


def test_moments_have_their_time_zone() -> None:
    own = {"tarry-id": ID, "tarry-queue": "orders", "tarry-due-ms": NOW}
    assert Attempt.read(own, "orders").due == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def test_the_owner_is_a_name_or_comes_from_the_message() -> None:
    headers, body = {"tenant": 7}, b"acme:order"
    assert owner_of(Options(owner="acme"), headers, body) == "acme"
    assert owner_of(Options(owner=lambda found, _: found.get("tenant")), headers, body) == "7"
    assert owner_of(Options(owner=lambda _, found: found.split(b":")[0].decode()), headers, body) == "acme"
    assert owner_of(Options(), headers, body) is None


@pytest.mark.parametrize("owner", [lambda found, _: found["no such header"], "o" * 256, "a\x00"])
def test_an_owner_that_cannot_be_told_does_not_cost_the_retry(owner: Any) -> None:
    assert owner_of(Options(owner=owner), {}, b"") is None


def test_a_message_that_has_an_owner_keeps_it() -> None:
    failure = describe(ValueError("no"), Options(), NOW)
    assert understood(request(incoming({"owner": "acme"}), failure, owner="other")).failure.owner == "acme"
    assert understood(request(incoming(), failure, owner="other")).failure.owner == "other"
    assert understood(request(incoming(), failure)).failure.owner is None


def test_retry_request_takes_an_owner() -> None:
    made = retry_request("orders", ValueError("no"), message_id="m-1", owner="acme", options=Options(owner="other"))
    assert understood(made).failure.owner == "acme"
    assert (
        understood(retry_request("orders", ValueError("no"), options=Options(owner="other"))).failure.owner == "other"
    )
