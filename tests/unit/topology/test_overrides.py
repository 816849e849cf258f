"""The names and numbers that the invoice platform sets in the environment."""

from __future__ import annotations

import pytest

from tarry.errors import SettingsError
from tarry.topology.load import load, shipped
from tarry.topology.model import Topology
from tarry.topology.overrides import Overrides


@pytest.fixture(scope="module")
def topology() -> Topology:
    return load(shipped())


def default_delays(topology: Topology, count: int) -> list[int]:
    policy = next(policy for policy in topology.policies if policy.name == "default")
    return [policy.delay(number) for number in range(count)]


def test_nothing_given_changes_nothing(topology: Topology) -> None:
    assert Overrides().apply(topology) == topology


def test_queue_names_are_replaced(topology: Topology) -> None:
    names = Overrides(scheduled="my.requests", review="my.review").apply(topology).broker_names
    assert (names.scheduled, names.review_queue) == ("my.requests", "my.review")


def test_base_and_cap_change_the_default_policy_only(topology: Topology) -> None:
    changed = Overrides(base_ms=500, cap_ms=1500).apply(topology)
    assert default_delays(changed, 4) == [500, 1000, 1500, 1500]
    assert changed.policies[:-1] == topology.policies[:-1]


def test_more_retries_than_the_ceiling_raise_the_ceiling(topology: Topology) -> None:
    policy = Overrides(max_retries=12).apply(topology).policies[-1]
    assert (policy.max_retries, policy.ceiling) == (12, 12)


def test_a_cap_below_the_base_is_refused(topology: Topology) -> None:
    with pytest.raises(SettingsError, match=r"MAX_DELAY_MS \(1000\) is below BASE_DELAY_MS \(2000\)"):
        Overrides(cap_ms=1000).apply(topology)


def test_without_a_default_policy_there_is_nothing_to_override(topology: Topology) -> None:
    nameless = topology.model_copy(update={"policies": topology.policies[:-1]})
    with pytest.raises(SettingsError, match="the topology has none"):
        Overrides(max_retries=1).apply(nameless)


def test_a_default_policy_with_a_list_has_no_base(topology: Topology) -> None:
    listed = topology.policies[-1].model_copy(update={"backoff": None, "schedule": (1000,)})
    with pytest.raises(SettingsError, match="with a backoff"):
        Overrides(base_ms=1).apply(topology.model_copy(update={"policies": (listed,)}))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"scheduled": ""}, "at least 1 character"),
        ({"scheduled": "manual-review.pending"}, "scheduled and review are both"),
        ({"review": "retry.audit"}, "the name of another of tarry's queues"),
    ],
)
def test_a_queue_name_that_cannot_be_is_refused(topology: Topology, given: dict[str, str], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        Overrides(**given).apply(topology)  # type: ignore[arg-type]
