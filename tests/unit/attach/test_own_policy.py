from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.attach.own_policy import (
    PolicyRecord,
    apply_to,
    belongs_to,
    fingerprint,
    is_own,
    is_readable,
    pattern_for,
    policy_name,
    queue_of,
    unconfirmed,
)
from tarry.topology.broker_policies import BrokerPolicy
from tests.unit.attach.snapshots import a_policy

KEYS = ("dead-letter-exchange", "delivery-limit")


def test_the_pattern_fits_the_queue_alone_and_tells_what_it_was_made_of() -> None:
    record = PolicyRecord("team a", "9f2c61d0a4be", KEYS)
    pattern = pattern_for("orders.new", record)
    assert pattern == (
        r"^orders\.new$(?#tarry attach; base=team%20a:9f2c61d0a4be; own=dead-letter-exchange,delivery-limit; confirmed)"
    )
    assert [
        name for name in ("orders.new", "ordersXnew", "my.orders.new", "orders.new.x") if re.search(pattern, name)
    ] == ["orders.new"]


@given(base=st.none() | st.text(min_size=1), queue=st.text(min_size=1))
def test_any_name_survives_the_record(base: str | None, queue: str) -> None:
    record = PolicyRecord(base, None if base is None else "0123456789ab", KEYS)
    assert PolicyRecord.read(pattern_for(queue, record)) == record


def test_record_says_whether_a_write_was_confirmed() -> None:
    record = PolicyRecord(None, None, KEYS)
    policy = BrokerPolicy(policy_name("orders"), pattern_for("orders", record))
    first, second = unconfirmed(policy), unconfirmed(policy)
    assert record.confirmed
    assert first != second
    for one in (first, second):
        found = PolicyRecord.read(one.pattern)
        assert found is not None
        assert not found.confirmed
        assert found.own == KEYS


def test_record_of_a_version_that_did_not_confirm_is_unconfirmed() -> None:
    found = PolicyRecord.read("^orders$(?#tarry attach; base=-; own=dead-letter-exchange)")
    assert found is not None
    assert not found.confirmed


@pytest.mark.parametrize("pattern", ["^orders$", "^orders$(?#a comment of somebody's)", ""])
def test_other_patterns_are_not_ours(pattern: str) -> None:
    assert PolicyRecord.read(pattern) is None


def test_the_users_policy_is_the_same_whatever_it_is_called() -> None:
    record = PolicyRecord.of(a_policy("team", max_length=5), KEYS)
    assert record.made_from(a_policy("renamed", priority=9, max_length=5))
    assert not record.made_from(a_policy("team", max_length=6))
    assert not record.made_from(None)
    assert PolicyRecord.of(None, KEYS).made_from(None)
    assert not PolicyRecord.of(None, KEYS).made_from(a_policy("team", max_length=5))


def test_the_order_of_keys_is_no_difference() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})


def test_a_policy_belongs_to_the_installation_that_it_leads_to() -> None:
    pattern = pattern_for("orders", PolicyRecord(None, None, KEYS))
    policy = BrokerPolicy(policy_name("orders"), pattern, "queues", 1, {"dead-letter-exchange": "retry.intake"})
    assert queue_of(policy) == "orders"
    assert is_own(policy)
    assert belongs_to(policy, "retry.intake")
    assert not belongs_to(policy, "other.intake")
    assert not is_own(a_policy("tarry.orders", dead_letter_exchange="retry.intake"))


@pytest.mark.parametrize(
    ("version", "wanted"), [((3, 10, 8), "queues"), ((3, 11, 28), "queues"), ((3, 12, 0), "quorum_queues")]
)
def test_it_is_kept_to_the_queues_type_where_the_broker_can(version: tuple[int, ...], wanted: str) -> None:
    assert apply_to("quorum", version) == wanted


def test_patterns_that_mean_something_else_to_python_are_told_apart() -> None:
    patterns = ("^a.*$", "^[[:alpha:]]+$", "^a(?i)b$")
    assert [pattern for pattern in patterns if is_readable(pattern)] == ["^a.*$"]
