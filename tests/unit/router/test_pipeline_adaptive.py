"""Decisions from history in the pipeline: what is given up goes to review and is recorded, after eligibility and
before budgets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from tarry.contract.message import Request
from tarry.core.adaptive import ErrorKey, ErrorsGivenUp, draw_of
from tarry.core.decide import Review, Rulebook, Skip
from tarry.core.fingerprint import fingerprint
from tarry.core.policy import Policy
from tarry.core.states import State
from tarry.router.pipeline import Pipeline, Result
from tarry.router.plan import RoutePlan
from tarry.service.metrics import Metrics
from tests.unit.contract.wire import published
from tests.unit.router.test_pipeline import NOW, Fakes, handle

REASON = "given up: 0 of 412 retries of this error succeeded (below 1%)"
ERROR: dict[str, bytes | str | int] = {"original_queue": "orders", "error_type": "ValueError"}


def learning(fakes: Fakes, share: str) -> Pipeline:
    policy = Policy.model_validate(
        {
            "name": "plain",
            "schedule": ["2s"],
            "max_retries": 2,
            "adaptive": {"try": share},
            "eligibility": {"url": "http://127.0.0.1:1/", "key": "id"},
            "budget": {"per": "queue", "limit": 5, "every": "1d"},
        }
    )
    key = ErrorKey("orders", "plain", fingerprint("ValueError", None) or "")
    return replace(fakes.pipeline(policy), errors_given_up=lambda: ErrorsGivenUp({key: REASON}, NOW + 1))


@pytest.fixture
def fakes() -> Fakes:
    return Fakes()


def test_the_pipeline_publishes_what_is_given_up_to_review_and_records_the_reason(fakes: Fakes) -> None:
    result = handle(learning(fakes, "0.001%"), published(ERROR, message_id=b"m-1"))

    assert [one.exchange for one in fakes.published] == ["retry.review"]
    assert fakes.ledger.log == ["claim", "publish", "record"]
    (record,) = fakes.ledger.records
    assert (record.state, record.reason) == (State.IN_REVIEW, REASON)
    assert result.acked == [1]
    assert counted(result.moved) == {"given_up": 1.0}


def test_the_pipeline_still_tries_a_share_and_its_history_says_so(fakes: Fakes) -> None:
    result = handle(learning(fakes, "100%"), published(ERROR, message_id=b"m-1"))

    (record,) = fakes.ledger.records
    assert (record.state, record.reason) == (State.SCHEDULED, f"still tried, its error is {REASON}")
    assert counted(result.moved) == {"tried": 1.0}


def test_the_pipeline_chooses_by_the_message_also_if_it_is_delivered_again(fakes: Fakes) -> None:
    ids = [f"m-{number}".encode() for number in range(20)]
    for _ in range(2):
        handle(learning(fakes, "50%"), *(published(ERROR, message_id=one) for one in ids))

    first, again = fakes.ledger.records[:20], fakes.ledger.records[20:]
    assert [one.state for one in first] == [one.state for one in again]
    expected = [State.SCHEDULED if draw_of(one.retry_id) < 0.5 else State.IN_REVIEW for one in first]
    assert [one.state for one in first] == expected
    assert len(set(expected)) == 2


def test_the_pipeline_skips_what_is_not_wanted_whatever_its_history(fakes: Fakes) -> None:
    async def unwanted(requests: Sequence[Request], _rules: Rulebook) -> Mapping[int, str]:
        return {one.delivery.tag: "the device is inactive" for one in requests}

    result = handle(replace(learning(fakes, "1%"), ask_eligibility=unwanted), published(ERROR, message_id=b"m-1"))

    assert isinstance(result.moved[0].decision, Skip)


def test_the_pipeline_charges_no_budget_for_what_is_given_up(fakes: Fakes) -> None:
    charged: list[bool] = []

    async def charge(plans: Sequence[RoutePlan], _rules: Rulebook) -> list[RoutePlan]:
        charged.extend(isinstance(one.decision, Review) for one in plans)
        return list(plans)

    handle(replace(learning(fakes, "0.001%"), charge_budgets=charge), published(ERROR, message_id=b"m-1"))

    assert charged == [True], "it is decided before budgets are charged, and these charge no reviews"


def counted(moved: Sequence[RoutePlan]) -> dict[str, float]:
    metrics = Metrics()
    metrics.count(Result(moved, [], [], [], [], [], 0.0, 0.0))
    found = {}
    for family in metrics.registry.collect():
        if family.name == "tarry_adaptive":
            found = {one.labels["outcome"]: one.value for one in family.samples if one.name.endswith("_total")}
    return found
