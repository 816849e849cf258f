from __future__ import annotations

from typing import Any

import pytest

from tarry.topology.objects import Arguments
from tarry.topology.record import AT, DIGEST, ApplyRecord, digest, newest
from tests.unit.topology import examples

POLICY = {"name": "default", "schedule": ["2s", "8s"], "max_retries": 2}


def test_digest_is_equal_for_files_that_mean_the_same() -> None:
    written_out = {"description": "another", "match": {"queue": "*"}, "jitter": "0s"}
    names = {"prefix": "retry.", "scheduled": "retry.scheduled", "review": "manual-review.pending"}

    assert digest(examples.topology()) == digest(examples.topology(policy=[POLICY | written_out], names=names))


@pytest.mark.parametrize(
    "change",
    [
        {"policy": [POLICY | {"max_retries": 3}]},
        {"policy": [POLICY | {"schedule": ["2s", "9s"]}]},
        {"policy": [POLICY, POLICY | {"name": "other"}]},
        {"names": {"review": "elsewhere"}},
        {"destinations": ["orders.*"]},
        {"time_scale": 0.5},
    ],
)
def test_digest_differs_for_files_that_mean_something_else(change: dict[str, Any]) -> None:
    assert digest(examples.topology()) != digest(examples.topology(**change))


def record(at: str) -> ApplyRecord:
    return ApplyRecord(Arguments.read({DIGEST: at, AT: at}))


def test_newest_is_the_last_one_with_a_time_that_can_be_read() -> None:
    early, late = record("2030-01-31T12:00:00+00:00"), record("2030-01-31T12:00:01+00:00")

    assert newest([early, late, record("yesterday"), record("0001-01-01T00:00:00+10:00")]) == late
    assert newest([]) is None
    assert str(late) == (
        "a topology without a folder on an unknown host (digest 2030-01-31T1), applied 2030-01-31 12:00:01 UTC"
    )
