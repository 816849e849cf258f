from __future__ import annotations

import pytest

from tarry.core.names import Destination, Names, digit_key, enter_key, id_key, skip_key


def test_every_name_starts_with_the_prefix() -> None:
    names = Names("shop.", "shop.scheduled", "shop-review")
    assert (names.intake, names.delay, names.review) == ("shop.intake", "shop.delay", "shop.review")
    assert names.tier(8_000) == "shop.delay.8s"
    assert names.ladder_tier(0, 375) == "shop.ladder.0.375ms"
    assert names.relay_queue(Destination("queue", "orders")) == "shop.relay.orders"
    assert names.held_queue(Destination("exchange", "events")) == "shop.held.exchange:events"


@pytest.mark.parametrize(
    ("key", "written"),
    [
        (enter_key(60_000), "~in:1m"),
        (digit_key(0, 3), "~0:3"),
        (skip_key(6, 2), "~6>2"),
        (skip_key(6, None), "~6>end"),
        (id_key("24e9476b-f4f5-5044-8227-4c112216f4bc", 2), "~id:24e9476b-f4f5-5044-8227-4c112216f4bc:2"),
        (Destination("queue", "orders.new").key, "~to:orders.new"),
        (Destination("exchange", "events.50%").key, "~via:events%2E50%25"),
    ],
)
def test_keys(key: str, written: str) -> None:
    assert key == written


def test_a_name_too_long_for_a_key_is_hashed() -> None:
    key = Destination("queue", "q" * 255).key
    assert key == "~to#db6dd231025487e7f400902bdcdf5e16fd0077678ee25395eabef285eed44224"


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("retry.anything", True),
        ("amq.gen-1", True),
        ("", True),
        ("manual-review.pending", True),
        ("orders", False),
        ("my-retry.queue", False),
    ],
)
def test_tarrys_and_the_brokers_own_names_are_no_destinations(name: str, ours: bool) -> None:  # noqa: FBT001 - a table
    assert Names().is_ours(name) is ours


def test_a_name_that_leaves_no_room_has_no_relay() -> None:
    assert Destination("queue", "q" * 240).can_have_relay
    assert not Destination("queue", "q" * 241).can_have_relay
