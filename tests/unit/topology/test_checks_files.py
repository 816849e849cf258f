"""What the files say without a mistake and hardly on purpose: policies that never apply, and delays of 0."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tarry.topology.checks.files import check_policies
from tarry.topology.load import load, shipped
from tarry.topology.model import Topology


def policy(name: str, **given: Any) -> dict[str, Any]:
    return {"name": name, "schedule": ["2s"], "max_retries": 1} | given


def found(*policies: dict[str, Any]) -> list[str]:
    return [f"{one.subject}: {one.problem}" for one in check_policies(Topology.model_validate({"policy": policies}))]


def matching(**globs: str) -> dict[str, Any]:
    return {"match": globs}


def test_check_policies_finds_nothing_in_the_shipped_topology() -> None:
    assert list(check_policies(load(shipped()))) == []


def test_check_policies_names_both_files_of_a_policy_that_never_applies(tmp_path: Path) -> None:
    table = '[[policy]]\nname = "{}"\nmatch = {{ queue = "{}" }}\nschedule = ["2s"]\nmax_retries = 1\n'
    (tmp_path / "policies").mkdir()
    (tmp_path / "tarry.toml").write_text(table.format("all", "*"), "utf-8")
    (tmp_path / "policies" / "10-mail.toml").write_text(table.format("mail", "mail.*"), "utf-8")

    (finding,) = check_policies(load(tmp_path))

    assert finding.level == "note"
    assert finding.things == (f"policy mail ({tmp_path}/policies/10-mail.toml)",)
    assert finding.problem == (
        f"can never apply: policy all ({tmp_path}/tarry.toml) comes first and matches the same messages"
    )
    assert finding.mend == "put the policy that matches less first, or remove one of the two"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"queue": "orders"}),
        ({"queue": "orders.*"}, {"queue": "orders.eu.*", "priority": "high"}),
        ({"priority": "*"}, {"priority": "high", "job_type": "pdf"}),
        ({"queue": "orders", "job_type": "pdf*"}, {"queue": "orders", "job_type": "pdf"}),
    ],
)
def test_check_policies_finds_a_match_that_an_earlier_one_covers(first: dict[str, str], second: dict[str, str]) -> None:
    (line,) = found(policy("a", **matching(**first)), policy("b", **matching(**second)))

    assert line == "policy b: can never apply: policy a comes first and matches the same messages"


def test_check_policies_says_once_what_one_policy_does_to_several() -> None:
    assert found(policy("all"), *(policy(name) for name in "abcdef")) == [
        (
            "policy a, policy b, policy c, policy d and 2 more: can never apply: policy all comes first and matches "
            "the same messages"
        )
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"queue": "orders.*"}, {"queue": "*"}),
        ({"queue": "orders.*"}, {"queue": "orders*"}),
        ({"priority": "*"}, {}),
        ({"priority": "high"}, {"priority": "h*"}),
        ({"queue": "*", "job_type": "pdf"}, {"queue": "orders"}),
        ({"queue": "a*"}, {"queue": "*a"}),
    ],
)
def test_check_policies_is_silent_while_a_request_can_reach_a_policy(
    first: dict[str, str], second: dict[str, str]
) -> None:
    assert found(policy("a", **matching(**first)), policy("b", **matching(**second))) == []


@pytest.mark.parametrize("glob", ["queue-#.*", "*.queue-#", "a.*.#.*", "[a-z]" + "*[ab]" * 90 + "#?", "*?[ab]#*" * 45])
def test_check_policies_is_quick_with_hundreds_of_policies(glob: str) -> None:
    started = time.process_time()

    found(*(policy(f"p{number}", **matching(queue=glob.replace("#", str(number)))) for number in range(500)))

    assert time.process_time() - started < 10


@pytest.mark.parametrize(
    ("delays", "retries"),
    [
        ({"schedule": ["0s", "2s"], "max_retries": 3}, "retry 1 waits"),
        ({"schedule": ["2s", "0ms"], "max_retries": 4}, "retries 2 to 4 wait"),
        ({"schedule": ["0s", "2s", "0s"], "max_retries": 3}, "retries 1, 3 wait"),
        ({"schedule": ["2s", "0s"], "max_retries": 1, "max_retries_ceiling": 2}, "retry 2 waits"),
        ({"schedule": None, "backoff": {"base": "0s", "cap": "1m"}, "max_retries": 2}, "retries 1 to 2 wait"),
        ({"schedule": ["0s"], "jitter": "30%"}, "retry 1 waits"),
    ],
)
def test_check_policies_finds_delays_of_0(delays: dict[str, Any], retries: str) -> None:
    (line,) = found(policy("a", **delays))

    assert line == f"policy a: {retries} 0 ms: a message that fails again returns at once"


@pytest.mark.parametrize(
    "delays",
    [
        {"schedule": ["1ms"]},
        {"schedule": ["0s"], "jitter": "1s"},
        {"schedule": ["2s", "0s"], "max_retries": 1},
        {"schedule": ["0s"], "max_retries": 0},
    ],
)
def test_check_policies_is_silent_on_a_0_that_no_retry_waits(delays: dict[str, Any]) -> None:
    assert found(policy("a", **delays)) == []
