from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import Field, walk
from tarry.amqp.properties import Properties
from tarry.amqp.publisher import Message, PublishOutcome
from tarry.contract.message import Acceptance, Request
from tarry.contract.request import parse
from tarry.core.decide import Rulebook
from tarry.core.ladder import Ladder
from tarry.core.names import Destination, Names
from tarry.core.policy import Policy
from tarry.core.states import State
from tarry.errors import GivenUpError
from tarry.router.pipeline import Pipeline, Result
from tarry.store.rows import Claim, Claimed, Granted, Leg, Record
from tests.unit.contract.wire import headers, named, published, rejected, table

NOW = 1_700_000_000_000
POLICY = Policy.model_validate({"name": "plain", "schedule": ["2s", "8s"], "max_retries": 2})


def _id_of(delivery: Delivery) -> str:
    request = parse(delivery, Acceptance(Names()), lambda: "")
    assert isinstance(request, Request)
    return request.retry_id


M1 = _id_of(rejected(message_id=b"m-1"))


@dataclass
class FakeLedger:
    """A ledger that remembers the order of things, and denies what it is told to."""

    log: list[str] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    legs: list[Leg] = field(default_factory=list)
    noted: list[tuple[str, int]] = field(default_factory=list)
    unclaimed: list[tuple[str, int]] = field(default_factory=list)
    denied: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    """Of these it says nothing at all."""
    known: dict[str, Granted] = field(default_factory=dict)
    broken: bool = False

    async def claim(self, claims: Sequence[Claim]) -> Claimed:
        if self.broken:
            raise OSError("gone")
        self.log.append("claim")
        self.claims += claims
        as_asked = {one.retry_id: Granted(one.retry_id, one.round, one.retry_count, one.since_ms) for one in claims}
        granted = {
            key: self.known.get(key, one) for key, one in as_asked.items() if key not in self.denied | self.silent
        }
        return Claimed(granted, {key: key for key in self.denied})

    async def unclaim(self, claimed: Sequence[tuple[str, int]]) -> None:
        self.log.append("unclaim")
        self.unclaimed += claimed

    async def record(self, records: Sequence[Record]) -> None:
        self.log.append("record")
        self.records += records

    async def record_legs(self, legs: Sequence[Leg]) -> None:
        self.log.append("legs")
        self.legs += legs

    async def duplicates(self, found: Sequence[tuple[str, int]]) -> None:
        self.log.append("duplicates")
        self.noted += found


@dataclass
class Fakes:
    """A pipeline whose ports are all fakes."""

    ledger: FakeLedger = field(default_factory=FakeLedger)
    published: list[Message] = field(default_factory=list)
    outcomes: dict[str, PublishOutcome] = field(default_factory=dict)
    """By message id; what is not named is confirmed."""
    refused: dict[str, PublishOutcome] = field(default_factory=dict)
    """By a key on the message's way."""
    unreachable: dict[str, str] = field(default_factory=dict)
    asked_for: list[Destination] = field(default_factory=list)
    ids: int = 0

    def pipeline(self, policy: Policy = POLICY, frame_max: int = 131_072) -> Pipeline:
        names = Names()
        return Pipeline(
            names=names,
            rules=Rulebook((policy,), Ladder(), policy.tiers()),
            accept=Acceptance(names),
            ledger=self.ledger,
            publish=self._publish,
            ensure_bound=self._ensure_bound,
            now_ms=lambda: NOW,
            draw=lambda: 0.0,
            new_id=self._new_id,
            frame_max=lambda: frame_max,
        )

    async def _publish(self, messages: Sequence[Message]) -> list[PublishOutcome]:
        self.ledger.log.append("publish")
        self.published += messages
        ids = [(one.properties.message_id or b"").decode(errors="replace") for one in messages]
        return [
            self._refusal(message) or self.outcomes.get(one, PublishOutcome.CONFIRMED)
            for message, one in zip(messages, ids, strict=True)
        ]

    def _refusal(self, message: Message) -> PublishOutcome | None:
        way = message.properties.headers or b""
        return next((outcome for key, outcome in self.refused.items() if key.encode() in way), None)

    async def _ensure_bound(self, destination: Destination) -> str | None:
        self.asked_for.append(destination)
        return self.unreachable.get(destination.name)

    def _new_id(self) -> str:
        self.ids += 1
        return f"00000000-0000-4000-8000-{self.ids:012}"


@pytest.fixture
def fakes() -> Fakes:
    return Fakes()


def handle(pipeline: Pipeline, *deliveries: Delivery) -> Result:
    return asyncio.run(pipeline.handle([one._replace(tag=place) for place, one in enumerate(deliveries, start=1)]))


def header(message: Message, name: str) -> Field:
    return dict(walk(message.properties.headers or b""))[name.encode()]


def test_the_steps_come_in_the_order_that_makes_a_crash_harmless(fakes: Fakes) -> None:
    result = handle(fakes.pipeline(), rejected(message_id=b"m-1"))
    assert fakes.ledger.log == ["claim", "publish", "record"]
    assert (result.acked, result.requeued) == ([1], [])


def test_a_request_goes_into_its_tier_with_its_own_key_and_body(fakes: Fakes) -> None:
    handle(fakes.pipeline(), rejected("orders", exchange="shop", key="order.new", body=b"hello", message_id=b"m-1"))
    (message,) = fakes.published
    assert (message.exchange, message.routing_key, message.body) == ("retry.delay", "order.new", b"hello")
    assert header(message, "tarry-due-ms").integer() == NOW + 2_000
    (record,) = fakes.ledger.records
    assert message.token == f"{record.retry_id}:1"
    assert (record.state, record.tier, record.due_ms, record.retry_count) == (
        State.SCHEDULED,
        "retry.delay.2s",
        NOW + 2_000,
        1,
    )
    assert (record.exchange, record.routing_key, record.body) == ("shop", "order.new", b"hello")
    assert fakes.asked_for == [Destination("queue", "orders")]


def test_what_the_ledger_knows_beats_what_the_request_says(fakes: Fakes) -> None:
    """A consumer that lost our headers must not loop for ever."""
    fakes.ledger.known[M1] = Granted(M1, round=2, retry_count=1, since_ms=NOW - 5_000)
    handle(fakes.pipeline(), rejected(message_id=b"m-1"))
    (message,) = fakes.published
    assert header(message, "tarry-round").integer() == 2
    assert header(message, "tarry-since-ms").integer() == NOW - 5_000
    assert fakes.ledger.records[0].tier == "retry.delay.8s"


def test_a_duplicate_is_noted_and_taken_off_the_queue(fakes: Fakes) -> None:
    fakes.ledger.denied.add(M1)
    result = handle(fakes.pipeline(), rejected(message_id=b"m-1"), rejected(message_id=b"m-2"))
    assert [one.retry_id for one in result.duplicates] == [M1]
    assert fakes.ledger.noted == [(M1, 1)]
    assert sorted(result.acked) == [1, 2]
    assert [one.properties.message_id for one in fakes.published] == [b"m-2"]


def test_claims_on_requests_that_went_to_another_router_are_given_back(fakes: Fakes) -> None:
    """A router that was frozen before its claim: another one is through with these."""
    fakes.ledger.known[M1] = Granted(M1, round=3, retry_count=2, since_ms=None)
    pipeline = fakes.pipeline()
    with pytest.raises(GivenUpError):
        asyncio.run(pipeline.handle([rejected(message_id=b"m-1")], lambda: True))
    assert fakes.ledger.log == ["claim", "unclaim"]
    assert fakes.ledger.unclaimed == [(M1, 3)]
    assert (fakes.published, pipeline.in_flight) == ([], set())


def test_messages_without_an_id_that_went_to_another_router_are_left_to_it(fakes: Fakes) -> None:
    """Nothing recognises them there: each would return twice. The question about eligibility can take half a minute."""
    with pytest.raises(GivenUpError):
        asyncio.run(fakes.pipeline().handle([rejected()], lambda: True))
    assert (fakes.published, fakes.ledger.log) == ([], [])


@pytest.mark.parametrize("outcome", [PublishOutcome.NACKED, PublishOutcome.RETURNED, PublishOutcome.UNKNOWN])
def test_what_the_broker_does_not_take_stays_and_the_others_go_on(fakes: Fakes, outcome: PublishOutcome) -> None:
    fakes.outcomes["m-1"] = outcome
    result = handle(fakes.pipeline(), rejected(message_id=b"m-1"), rejected(message_id=b"m-2"))
    assert (result.acked, result.requeued) == ([2], [1])
    assert [one.message_id for one in fakes.ledger.records] == ["m-2"]
    assert [(plan.item.retry_id, why) for plan, why in result.stuck] == [(M1, outcome)]


@pytest.mark.parametrize("outcome", [PublishOutcome.NACKED, PublishOutcome.RETURNED])
def test_what_its_tier_does_not_take_goes_by_the_ladder(fakes: Fakes, outcome: PublishOutcome) -> None:
    fakes.refused["~in:2s"] = outcome
    result = handle(fakes.pipeline(), rejected(message_id=b"m-1"), rejected(message_id=b"m-2"))
    assert sorted(result.acked) == [1, 2]
    assert {why for _, why in result.detours} == {outcome}
    assert result.stuck == []
    assert {(one.tier, one.delay_ms, one.due_ms) for one in fakes.ledger.records} == {
        ("retry.ladder.1.2s", 2_000, NOW + 2_000)
    }


@pytest.mark.parametrize(
    ("outcome", "tier"),
    [(PublishOutcome.NACKED, "retry.ladder~gold.1.2s"), (PublishOutcome.RETURNED, "retry.ladder.1.2s")],
)
def test_what_a_lane_does_not_take_goes_by_its_ladder_or_the_shared_one(
    fakes: Fakes, outcome: PublishOutcome, tier: str
) -> None:
    """Returned means that the lane is gone."""
    fakes.refused["~in~gold:2s"] = outcome
    pipeline = fakes.pipeline()
    policies = tuple(policy.model_copy(update={"lane": "gold"}) for policy in pipeline.rules.policies)
    tiers = frozenset(("gold", ms) for ms in pipeline.rules.tiers)
    rules = Rulebook(policies, pipeline.rules.ladder, frozenset(), tiers)
    result = handle(replace(pipeline, rules=rules), rejected(message_id=b"m-1"))
    assert (result.acked, result.stuck) == ([1], [])
    assert [(one.tier, one.due_ms) for one in fakes.ledger.records] == [(tier, NOW + 2_000)]


def test_a_second_request_for_the_same_retry_waits_its_turn(fakes: Fakes) -> None:
    pipeline = fakes.pipeline()
    result = handle(pipeline, rejected(message_id=b"m-1"), rejected(message_id=b"m-1"))
    assert (result.acked, result.requeued) == ([1], [2])
    assert len(fakes.ledger.claims) == 1
    assert pipeline.in_flight == set()


def test_two_messages_with_one_id_and_other_bodies_are_independent(fakes: Fakes) -> None:
    result = handle(fakes.pipeline(), rejected(body=b"a", message_id=b"m-1"), rejected(body=b"b", message_id=b"m-1"))
    assert (sorted(result.acked), result.requeued) == ([1, 2], [])
    assert len({one.token for one in fakes.published}) == 2


def test_equal_messages_without_an_id_are_moved_at_once_and_not_claimed(fakes: Fakes) -> None:
    """Nothing can be known of them, and a claim of theirs could never be closed by another router."""
    result = handle(fakes.pipeline(), rejected(), rejected())
    assert (sorted(result.acked), fakes.ledger.log) == ([1, 2], ["publish", "record"])
    assert len({one.token for one in fakes.published}) == 2


@pytest.mark.parametrize(
    ("mode", "claimed", "moved"), [("content", 2, 2), ("message_id", 1, 1), ("off", 0, 2)], ids=str
)
def test_a_policy_says_when_two_messages_are_one(fakes: Fakes, mode: str, claimed: int, moved: int) -> None:
    policy = Policy.model_validate(POLICY.model_dump(exclude_none=True) | {"deduplicate": mode})
    result = handle(
        fakes.pipeline(policy), rejected(body=b"a", message_id=b"m-1"), rejected(body=b"b", message_id=b"m-1")
    )
    assert (len(fakes.ledger.claims), len(result.acked)) == (claimed, moved)


def test_a_request_about_which_nothing_is_known_is_retried_not_dropped(fakes: Fakes) -> None:
    fakes.ledger.silent.add(M1)
    result = handle(fakes.pipeline(), rejected(message_id=b"m-1"), rejected(message_id=b"m-2"))
    assert (result.acked, result.requeued, result.duplicates) == ([2], [1], [])


def test_a_claim_may_be_granted_for_a_round_of_another_retry(fakes: Fakes) -> None:
    """Recognised by its identity: it goes on as that retry."""
    other = "11111111-1111-4111-8111-111111111111"
    fakes.ledger.known[M1] = Granted(other, round=2, retry_count=1, since_ms=NOW)
    handle(fakes.pipeline(), rejected(message_id=b"m-1"))
    (message,) = fakes.published
    assert (header(message, "tarry-id").text(), message.token) == (other, f"{other}:2")
    assert fakes.ledger.records[0].retry_id == other


def test_a_retry_is_free_again_even_if_its_batch_fails(fakes: Fakes) -> None:
    pipeline = fakes.pipeline()
    fakes.ledger.broken = True
    with pytest.raises(OSError, match="gone"):
        handle(pipeline, rejected(message_id=b"m-1"))
    assert pipeline.in_flight == set()


def test_a_bad_request_goes_to_review_whole_beside_the_good_ones(fakes: Fakes) -> None:
    result = handle(fakes.pipeline(), published({}, b"who am I"), rejected(message_id=b"m-1"))
    assert sorted(result.acked) == [1, 2]
    review = fakes.published[-1]
    assert (review.exchange, review.body) == ("retry.review", b"who am I")
    assert (header(review, "review_reason").text() or "").startswith("no origin")
    record = fakes.ledger.records[-1]
    assert (record.state, record.queue, record.policy) == (State.IN_REVIEW, "", None)


def test_an_exhausted_request_goes_to_review_with_its_count(fakes: Fakes) -> None:
    ours = headers({"tarry-id": M1, "tarry-queue": "orders", "tarry-round": 2, "tarry-count": 2})
    result = handle(fakes.pipeline(), rejected("orders", ours, message_id=b"m-1"))
    (review,) = fakes.published
    assert header(review, "review_reason").text() == "exhausted: 2 of 2 retries spent"
    assert header(review, "tarry-round").integer() == 3
    assert result.acked == [1]
    assert fakes.asked_for == []


def test_a_destination_that_cannot_be_reached_is_for_a_person(fakes: Fakes) -> None:
    fakes.unreachable["orders"] = "the origin queue 'orders' does not exist"
    handle(fakes.pipeline(), rejected(message_id=b"m-1"))
    (review,) = fakes.published
    assert review.exchange == "retry.review"
    assert header(review, "review_reason").text() == "the origin queue 'orders' does not exist"


def test_headers_without_room_are_for_a_person(fakes: Fakes) -> None:
    handle(fakes.pipeline(), rejected("orders", named("big", "b" * 125_000), message_id=b"m-1"))
    (review,) = fakes.published
    assert review.exchange == "retry.review"
    assert header(review, "review_reason").text() == "its headers leave no room for tarry's own in one frame"


def test_a_policy_may_return_through_the_exchange(fakes: Fakes) -> None:
    handle(
        fakes.pipeline(POLICY.model_copy(update={"return_to": "exchange"})),
        rejected(exchange="shop", key="order.new", message_id=b"m-1"),
        rejected("other", exchange="", message_id=b"m-2"),
    )
    assert fakes.asked_for == [Destination("exchange", "shop"), Destination("queue", "other")]


def test_a_probe_is_taken_off_the_queue_and_that_is_all(fakes: Fakes) -> None:
    probe = named("tarry-probe", "retry.probe.0a")
    assert handle(fakes.pipeline(), rejected("retry.probe.0a", probe)).acked == [1]
    assert fakes.ledger.log == []


def test_a_body_is_not_kept_where_the_policy_says_so(fakes: Fakes) -> None:
    handle(fakes.pipeline(POLICY.model_copy(update={"keep_payload": False})), rejected(message_id=b"m-1"))
    assert (fakes.ledger.records[0].body, fakes.ledger.records[0].properties) == (None, None)


def test_nothing_in_a_record_is_more_than_postgres_takes(fakes: Fakes) -> None:
    said: dict[str, bytes | str | int] = {"original_queue": "orders", "error_type": "a\x00b", "error_reason": "\x00"}
    handle(fakes.pipeline(), published(said, message_id=b"m\x00"), published({"x": table()}, message_id=b"\xff\x00"))
    for record in fakes.ledger.records:
        texts = [record.error_type, record.error_reason, record.reason, record.message_id, record.routing_key]
        assert not [text for text in texts if text is not None and "\x00" in text]


def test_an_unexpected_parsing_error_goes_to_review_and_spares_the_batch(fakes: Fakes) -> None:
    broken = Delivery(b"", Properties(headers=5), "", "k")  # type: ignore[arg-type]
    pipeline = fakes.pipeline()
    plan = pipeline._understand(broken)
    assert "it could not be read" in plan.reason  # type: ignore[union-attr]
