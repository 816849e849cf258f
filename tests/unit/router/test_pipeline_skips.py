"""A skipped request is recorded and then acknowledged; nothing is published for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from tarry.contract.message import Request
from tarry.core.decide import Rulebook
from tarry.core.ladder import Ladder
from tarry.core.names import Names
from tarry.core.policy import Policy
from tarry.core.states import State
from tarry.router.actions import actions
from tarry.router.pipeline import Pipeline
from tarry.service.metrics import Metrics
from tarry.store.rows import Granted
from tests.unit.contract.wire import rejected
from tests.unit.router.test_pipeline import M1, POLICY, Fakes, handle

INACTIVE = "device d-1 is inactive"
ASKING = POLICY.model_copy(
    update={
        "eligibility": Policy.model_validate(
            {
                "name": "x",
                "schedule": ["1s"],
                "max_retries": 1,
                "eligibility": {"url": "http://h/", "key": "device_id"},
            }
        ).eligibility
    }
)


@dataclass
class SkippingFakes(Fakes):
    """A pipeline whose eligibility check skips what failed in the queue `away`."""

    def skipping(self, policy: Policy = ASKING) -> Pipeline:
        return replace(self.pipeline(policy), ask_eligibility=self._ask)

    async def _ask(self, requests: Sequence[Request], _rules: Rulebook) -> Mapping[int, str]:
        self.ledger.log.append("ask")
        return {one.delivery.tag: INACTIVE for one in requests if one.origin.queue == "away"}


@pytest.fixture
def fakes() -> SkippingFakes:
    return SkippingFakes()


def test_a_skipped_request_is_recorded_and_acknowledged_unpublished(fakes: SkippingFakes) -> None:
    result = handle(fakes.skipping(), rejected(queue="away", message_id=b"m-1", body=b"hello"))
    assert (list(result.acked), list(result.requeued)) == ([1], [])
    assert fakes.published == []
    (record,) = fakes.ledger.records
    assert (record.state, record.reason, record.round) == (State.SKIPPED, INACTIVE, 1)
    assert (record.policy, record.message_id, record.body) == ("plain", "m-1", b"hello")
    assert (record.due_ms, record.tier, record.retry_count) == (None, None, 0)


def test_eligibility_is_asked_before_the_claim(fakes: SkippingFakes) -> None:
    """A claim that waits for HTTP would keep other routers waiting, or be taken over by them."""
    handle(fakes.skipping(), rejected(message_id=b"m-1"))
    assert fakes.ledger.log == ["ask", "claim", "publish", "record"]


def test_eligibility_is_not_asked_if_no_policy_says_so(fakes: SkippingFakes) -> None:
    handle(fakes.skipping(POLICY), rejected(queue="away", message_id=b"m-1"))
    assert fakes.ledger.log == ["claim", "publish", "record"]


def test_an_exhausted_or_final_request_is_not_skipped(fakes: SkippingFakes) -> None:
    """Whether it is exhausted, the audit knows: the request itself may have lost its count."""
    away = rejected(queue="away", message_id=b"m-1")
    retry = fakes.skipping()._understand(away)
    assert isinstance(retry, Request)
    fakes.ledger.known[retry.retry_id] = Granted(retry.retry_id, 4, 2, None)
    handle(fakes.skipping(), away)
    assert [record.state for record in fakes.ledger.records] == [State.IN_REVIEW]
    assert fakes.ledger.records[0].reason == "exhausted: 2 of 2 retries spent"


def test_a_duplicate_of_a_skipped_request_is_only_acknowledged(fakes: SkippingFakes) -> None:
    fakes.ledger.denied = {M1}
    result = handle(fakes.skipping(), rejected(message_id=b"m-1"))
    assert (list(result.acked), fakes.ledger.records, fakes.published) == ([1], [], [])


def test_a_skip_that_cannot_be_recorded_is_not_acknowledged(
    fakes: SkippingFakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> None:
        raise OSError("gone")

    monkeypatch.setattr(fakes.ledger, "record", fail)
    with pytest.raises(OSError, match="gone"):
        handle(fakes.skipping(), rejected(queue="away", message_id=b"m-1"))


def test_a_skip_keeps_no_payload_if_the_policy_keeps_none(fakes: SkippingFakes) -> None:
    handle(fakes.skipping(ASKING.model_copy(update={"keep_payload": False})), rejected(queue="away", message_id=b"m-1"))
    assert (fakes.ledger.records[0].body, fakes.ledger.records[0].properties) == (None, None)


def test_a_skip_does_not_affect_the_rest_of_its_batch(fakes: SkippingFakes) -> None:
    result = handle(fakes.skipping(), rejected(queue="away", message_id=b"m-2"), rejected(message_id=b"m-1"))
    assert sorted(result.acked) == [1, 2]
    assert [message.token for message in fakes.published] == [f"{M1}:1"]
    assert {record.state for record in fakes.ledger.records} == {State.SCHEDULED, State.SKIPPED}


def test_a_skip_is_logged_and_counted(fakes: SkippingFakes) -> None:
    result = handle(fakes.skipping(), rejected(queue="away", message_id=b"m-1"))
    (line,) = actions(result, Names(), Ladder())
    assert (line["event"], line["queue"], line["reason"]) == ("skipped", "away", INACTIVE)
    metrics = Metrics()
    metrics.count(result)
    assert metrics.registry.get_sample_value("retries_skipped_total", {"queue": "away"}) == 1
    assert metrics.registry.get_sample_value("tarry_reviewed_total", {"queue": "away"}) is None
