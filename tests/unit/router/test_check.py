"""The service as the consumer of a check queue: what it reports, acknowledges and rejects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import table
from tarry.amqp.properties import Properties
from tarry.amqp.publisher import Message, PublishOutcome
from tarry.core.decide import Rulebook
from tarry.core.ladder import Ladder
from tarry.core.names import Check, Names
from tarry.core.policy import Policy
from tarry.router.batches import BatchResult
from tarry.router.check import CheckHandler
from tarry.router.eligibility import EligibilityCheck
from tarry.router.pipeline import CurrentPipeline

ID = "24e9476b-f4f5-5044-8227-4c112216f4bc"
CHECK = Check("notify", 60_000)
POLICY = Policy.model_validate(
    {
        "name": "notify",
        "schedule": ["2s"],
        "max_retries": 2,
        "eligibility": {"at": "due", "url": "http://devices.internal/", "key": "device_id"},
    }
)


def due(tag: int, device: object = "d", **headers: Any) -> Delivery:
    about = {"tarry-id": ID, "tarry-round": tag, "device_id": device} | headers
    return Delivery(b"x", Properties(headers=table({k: v for k, v in about.items() if v is not None})), "", tag=tag)


@dataclass
class Scene:
    """A handler with an endpoint and a broker that answer as they are told to."""

    policies: tuple[Policy, ...] = (POLICY,)
    inactive: set[str] = field(default_factory=set)
    outcome: PublishOutcome = PublishOutcome.CONFIRMED
    error: Exception | None = None
    published: list[Message] = field(default_factory=list)
    rejected: list[int] = field(default_factory=list)
    counted: list[tuple[str, str, int]] = field(default_factory=list)

    async def about(self, _: Policy, tags: Mapping[str, list[int]]) -> Mapping[int, str]:
        if self.error is not None:
            raise self.error
        return {tag: f"{value} is inactive" for value in self.inactive for tag in tags.get(value, [])}

    async def publish(self, messages: Sequence[Message]) -> list[PublishOutcome]:
        assert not self.rejected, "reported before anything is settled"
        self.published += messages
        return [self.outcome] * len(messages)

    def handle(self, *batch: Delivery) -> BatchResult:
        rules = Rulebook(self.policies, Ladder(), frozenset())
        current = SimpleNamespace(rules=rules, names=Names(), now_ms=lambda: 1_000)
        handler = CheckHandler(
            CHECK,
            cast("CurrentPipeline", SimpleNamespace(current=current)),
            cast("EligibilityCheck", self),
            self.publish,
            self.rejected.extend,
            lambda *counted: self.counted.append(counted),
        )
        return asyncio.run(handler(batch))


def test_a_check_reports_and_acknowledges_what_is_not_wanted() -> None:
    scene = Scene(inactive={"b", "c"})
    assert scene.handle(due(1, "a"), due(2, "b"), due(3, "c")) == BatchResult([2, 3])
    assert scene.rejected == [1]
    (message,) = scene.published
    assert (message.exchange, message.properties.delivery_mode) == ("retry.reports", 2)
    assert json.loads(message.body)["outcomes"][0] == {
        "id": ID,
        "round": 2,
        "outcome": "skipped",
        "at_ms": 1_000,
        "reason": "b is inactive",
    }
    assert scene.counted == [("notify", "returned", 1), ("notify", "skipped", 2)]


def test_a_check_without_skips_reports_nothing() -> None:
    scene = Scene()
    assert scene.handle(due(1), due(2)) == BatchResult([])
    assert (scene.rejected, scene.published) == ([1, 2], [])


@pytest.mark.parametrize("outcome", [one for one in PublishOutcome if one is not PublishOutcome.CONFIRMED])
def test_a_check_whose_report_is_not_confirmed_acknowledges_nothing(outcome: PublishOutcome) -> None:
    scene = Scene(inactive={"b"}, outcome=outcome)
    assert scene.handle(due(1, "a"), due(2, "b")) == BatchResult(requeued=[2])
    assert scene.rejected == [1]


@pytest.mark.parametrize(
    "unreadable",
    [
        due(1, None),
        due(1, 1.5),
        due(1, **{"tarry-id": "x"}),
        due(1, **{"tarry-id": None}),
        due(1, **{"tarry-round": None}),
    ],
)
def test_a_check_lets_return_what_it_cannot_ask_about(unreadable: Delivery) -> None:
    scene = Scene(inactive={"d", "b"})
    assert scene.handle(unreadable, due(2, "b")) == BatchResult([2])
    assert scene.rejected == [1]


@pytest.mark.parametrize("changed", [(), (POLICY.model_copy(update={"eligibility": None}),)])
def test_a_check_lets_return_what_its_policy_no_longer_asks_about(changed: tuple[Policy, ...]) -> None:
    scene = Scene(changed, inactive={"b"})
    assert scene.handle(due(2, "b")) == BatchResult([])
    assert (scene.rejected, scene.published) == ([2], [])


def test_a_check_that_fails_lets_return() -> None:
    scene = Scene(inactive={"b"}, error=ValueError("a mistake"))
    assert scene.handle(due(1, "b")) == BatchResult([])
    assert scene.rejected == [1]
