"""How the broker weighs a policy against an argument; tests/integration/topology proves the same on real brokers."""

from __future__ import annotations

import re

import pytest

from tarry.topology.broker_policies import BrokerPolicy, PoliciesByName, overridden, policy_for
from tarry.topology.objects import Arguments, Exchange, Queue

TIER = Queue("retry.delay.8s", Arguments.of(x_queue_type="quorum", x_message_ttl=8_000, x_overflow="reject-publish"))
CLASSIC = Queue("orders", Arguments.of(x_queue_type="classic"))


def policy(name: str = "p", pattern: str = ".*", **about: object) -> BrokerPolicy:
    return BrokerPolicy.read({"name": name, "pattern": pattern, "apply-to": "queues", "definition": {}} | about)


def test_the_highest_priority_that_matches_is_the_only_one_that_counts() -> None:
    policies = [policy("low", priority=1), policy("high", priority=9), policy("other", "^orders", priority=99)]

    assert policy_for(TIER, policies) == policies[1]


@pytest.mark.parametrize(
    ("apply_to", "queue", "exchange"),
    [
        ("all", True, True),
        ("queues", True, False),
        ("quorum_queues", True, False),
        ("classic_queues", False, False),
        ("streams", False, False),
        ("exchanges", False, True),
    ],
)
def test_a_policy_is_for_some_kinds_of_things(apply_to: str, queue: bool, exchange: bool) -> None:  # noqa: FBT001 - a table
    found = policy(**{"apply-to": apply_to})

    assert found.fits(TIER) is queue
    assert found.fits(Exchange("retry.delay", "direct")) is exchange


def test_one_key_unknown_to_a_queue_type_voids_the_whole_policy() -> None:
    classic_only = policy(definition={"message-ttl": 5, "ha-mode": "all"}, priority=9)
    quorum_only = policy(definition={"message-ttl": 5, "delivery-limit": 3}, priority=9)

    assert not classic_only.fits(TIER)
    assert classic_only.fits(CLASSIC)
    assert quorum_only.fits(TIER)
    assert not quorum_only.fits(CLASSIC)


def test_of_a_limit_the_lower_value_counts_and_of_all_else_the_argument() -> None:
    shorter = policy(definition={"message-ttl": 300, "overflow": "drop-head", "max-length": 5})
    longer = policy(definition={"message-ttl": 9_000})

    assert overridden(TIER, shorter) == {"max-length": (None, 5), "message-ttl": (8_000, 300)}
    assert overridden(TIER, longer) == {}


def test_a_pattern_that_python_cannot_read_counts_as_a_match() -> None:
    assert policy(pattern=r"(?|a)").fits(TIER)


ODD_NAMES = (
    "orders",
    "orders.eu",
    "orders-eu",
    "a b",
    "(?#x)",
    "naïve",
    "new\nline",
    "ends\n",
    "[x]",
    "a\\b",
    "'q'",
    "$",
)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_policies_by_name_find_what_comparing_all_finds(name: str) -> None:
    policies = [
        BrokerPolicy(f"{place}{comment}", f"^{re.escape(one)}${comment}", priority=place % 3)
        for comment in ("", "(?#tarry attach; base=-; own=x; confirmed)")
        for place, one in enumerate(ODD_NAMES)
    ]
    policies += [BrokerPolicy("prefix", "^orders"), BrokerPolicy("any", ".*", priority=1), BrokerPolicy("odd", "(")]
    for some in (policies, policies[::-1]):
        thing = Queue(name, Arguments(()))
        assert PoliciesByName(some).policy_for(thing) is policy_for(thing, some)


def test_policies_by_name_compare_a_queue_with_few_of_those_that_match_one_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []
    original = BrokerPolicy.fits

    def counting(policy: BrokerPolicy, thing: Queue) -> bool:
        compared.append(policy.name)
        return original(policy, thing)

    monkeypatch.setattr(BrokerPolicy, "fits", counting)
    found = PoliciesByName(
        [BrokerPolicy(f"tarry.q{number}", f"^q{number}$(?#tarry attach)") for number in range(1_000)]
    )
    for number in range(1_000):
        policy = found.policy_for(Queue(f"q{number}", Arguments(())))
        assert policy is not None
        assert policy.name == f"tarry.q{number}"
    assert len(compared) == 1_000
