"""A message between two legs: sent for the rest, byte for byte, once, and never early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from structlog.testing import capture_logs

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import cut, pick, walk_array
from tarry.amqp.publisher import Message, PublishOutcome
from tarry.contract.message import Acceptance
from tarry.core.ladder import Ladder
from tarry.router import unroutable
from tarry.router.batches import BatchResult
from tarry.router.layover import LayoverHandler
from tarry.router.pipeline import CurrentPipeline
from tarry.router.unroutable import UnroutableHandler
from tarry.store.rows import Leg, LegKey
from tests.support.tracing import TRACE, UNSAMPLED
from tests.unit.contract.wire import array, death, headers, named, published, rejected, text
from tests.unit.router.test_pipeline import NOW, FakeLedger, Fakes, handle

WEEK = 7 * 86_400_000
LADDER = Ladder().longest_ms
HOME = ["~auto", "~policy:plain", "~to:orders"]


@dataclass
class LegLedger(FakeLedger):
    """Knows which legs were sent on."""

    sent_on: set[LegKey] = field(default_factory=set)
    unroutable: list[tuple[str, int]] = field(default_factory=list)

    async def legs_sent_on(self, legs: Sequence[LegKey]) -> set[LegKey]:
        self.log.append("ask")
        return self.sent_on.intersection(legs)

    async def note_unroutable(self, found: Sequence[tuple[str, int]]) -> None:
        self.unroutable += found


@dataclass
class Scene:
    """A pipeline with fakes, the handler of the layover queue, and a clock."""

    ledger: LegLedger = field(default_factory=LegLedger)
    now_ms: int = NOW
    counted: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fakes = Fakes(self.ledger)
        self.pipeline = CurrentPipeline(replace(self.fakes.pipeline(), now_ms=lambda: self.now_ms))
        self.handler = LayoverHandler(self.pipeline, self.ledger, self._count)

    def schedule(self, wait_ms: int = WEEK, **more: bytes | str | int) -> Message:
        values: dict[str, bytes | str | int] = {"original_queue": "orders", "retry_after_ms": wait_ms, **more}
        handle(self.pipeline.current, published(values, message_id=b"m-1", content_type=b"text/plain"))
        return self.fakes.published[-1]

    def send_on(self, *messages: Message) -> BatchResult:
        return asyncio.run(self.handler([arrived(one, tag) for tag, one in enumerate(messages, start=1)]))

    def _count(self, outcome: str, times: int) -> None:
        self.counted[outcome] = self.counted.get(outcome, 0) + times


def arrived(message: Message, tag: int = 1) -> Delivery:
    """As the broker delivers it: without BCC, and with what it adds on the way."""
    kept = cut(message.properties.headers or b"", b"BCC".__eq__)
    added = named("x-death", array(death("retry.ladder.6.63h", "expired"))) + named("x-first-death-queue", "q")
    properties = replace(message.properties, headers=kept + added)
    return Delivery(message.body, properties, "retry.relay", message.routing_key, tag=tag)


def keys(message: Message, name: bytes = b"BCC") -> list[str | None]:
    found = pick(message.properties.headers or b"", {name}).get(name)
    return [] if found is None else [item.text() for item in walk_array(found.value)]


def plain(message: Message) -> bytes:
    """Its headers without those of the leg."""
    return cut(message.properties.headers or b"", {b"BCC", b"tarry-layover"}.__contains__)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_first_leg_leads_to_the_router_and_names_its_home_in_a_header(scene: Scene) -> None:
    first = scene.schedule()
    [leg] = scene.ledger.legs
    assert keys(first)[-2:] == [f"~id:{leg.retry_id}:1", "~layover"]
    assert keys(first, b"tarry-layover") == ["1", *HOME]
    assert not {*HOME} & {*keys(first)}, "one of them would act before the last leg"
    assert (leg.leg, leg.due_ms, leg.delay_ms, leg.wait_ms) == (1, NOW + WEEK, WEEK, LADDER)
    [record] = scene.ledger.records
    assert (record.due_ms, record.delay_ms, record.tier) == (NOW + WEEK, WEEK, leg.tier)


def test_a_first_leg_is_stored_with_the_keys_of_the_last(scene: Scene) -> None:
    """A retry-now and a rebuilt message are made from them, and a pause is found by them."""
    scene.schedule()
    [record] = scene.ledger.records
    stored = record.properties or b""
    assert b"tarry-layover" not in stored
    assert b"~layover" not in stored
    assert all(text(key) in stored for key in (f"~id:{record.retry_id}:1", *HOME))


def test_every_leg_is_for_what_is_left_and_the_last_one_goes_home(scene: Scene) -> None:
    messages = [scene.schedule(trace="x")]
    for late in (40, 70):
        scene.now_ms += LADDER + late
        assert scene.send_on(messages[-1]).acked == [1]
        messages.append(scene.fakes.published[-1])
    first, second, last = messages
    assert keys(second, b"tarry-layover") == ["2", *HOME]
    assert keys(second)[-2:] == keys(first)[-2:]
    assert keys(last, b"tarry-layover") == []
    assert keys(last)[-4:] == [keys(first)[-2], *HOME]
    legs = scene.ledger.legs
    assert [leg.leg for leg in legs] == [1, 2, 3]
    assert [leg.wait_ms for leg in legs] == [LADDER, LADDER, None]
    assert all(leg.at_ms + leg.delay_ms >= NOW + WEEK for leg in legs), "early"
    assert legs[2].at_ms + legs[2].delay_ms < NOW + WEEK + 125
    assert plain(first) == plain(second) == plain(last)
    assert {(one.body, one.routing_key, one.exchange) for one in messages} == {(b"payload", "orders", "retry.delay")}
    assert [replace(one.properties, headers=None) for one in messages[1:]] == [
        replace(first.properties, headers=None)
    ] * 2
    assert scene.counted == {"sent": 2, "review": 0, "duplicate": 0}


def test_an_overdue_leg_goes_home_at_once(scene: Scene) -> None:
    first = scene.schedule()
    scene.now_ms += 2 * WEEK
    scene.send_on(first)
    assert keys(scene.fakes.published[-1])[:2] == ["~in:ladder", "~6>end"]
    assert scene.ledger.legs[-1].delay_ms == 0


def test_a_leg_is_recorded_after_the_confirm_and_before_the_acknowledgement(scene: Scene) -> None:
    first = scene.schedule()
    scene.ledger.log.clear()
    scene.send_on(first)
    assert scene.ledger.log == ["ask", "publish", "legs"]


def test_a_leg_whose_successor_is_recorded_is_dropped(scene: Scene) -> None:
    first = scene.schedule()
    scene.ledger.sent_on.add(scene.ledger.legs[0].key)
    before = len(scene.fakes.published)
    assert scene.send_on(first) == BatchResult([1], [])
    assert (len(scene.fakes.published), scene.counted["duplicate"]) == (before, 1)


def test_two_copies_of_a_leg_in_one_batch_send_one(scene: Scene) -> None:
    first = scene.schedule()
    before = len(scene.fakes.published)
    assert scene.send_on(first, first) == BatchResult([1], [2])
    assert len(scene.fakes.published) == before + 1


def test_two_messages_with_one_retry_id_are_both_sent_on(scene: Scene) -> None:
    """Copied headers, two routers and no Postgres: both were granted the retry, with one due time."""
    first = scene.schedule()
    other = replace(first, body=b"another payload")
    scene.ledger.sent_on.add(scene.ledger.legs[0].key)
    before = len(scene.fakes.published)
    assert scene.send_on(first, other) == BatchResult([1, 2], [])
    assert [one.body for one in scene.fakes.published[before:]] == [b"another payload"]


def test_layover_log_lines_name_the_retry_and_its_trace(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unroutable, "LONGEST_REST", 0.0)
    first = scene.schedule(traceparent=UNSAMPLED)
    forged = _without_header(first)
    with capture_logs() as logged:
        scene.send_on(first)
        scene.ledger.sent_on.add(scene.ledger.legs[0].key)
        scene.send_on(first)
        asyncio.run(_unroutable(scene)([arrived(first)]))
        scene.send_on(forged)
    assert [line["event"] for line in logged] == [
        "layover, sent for the rest",
        "layover, duplicate dropped",
        "unroutable, duplicate dropped",
        "layover, sent to review",
    ]
    assert {(line["retry_id"], line["round"]) for line in logged} == {(scene.ledger.legs[0].retry_id, 1)}
    assert [line.get("trace_id") for line in logged] == [TRACE, TRACE, TRACE, None]


def test_content_of_a_leg_stays_the_same(scene: Scene) -> None:
    messages = [scene.schedule(trace="x")]
    for _ in range(2):
        scene.now_ms += LADDER
        scene.send_on(messages[-1])
        messages.append(scene.fakes.published[-1])
    assert len({leg.content for leg in scene.ledger.legs}) == 1


def test_a_leg_that_the_topology_no_longer_accepts_is_reviewed_as_its_own_retry(scene: Scene) -> None:
    """Otherwise it would be in review under another id, and missing as well."""
    first = scene.schedule()
    retry, current = scene.ledger.legs[0].retry_id, scene.pipeline.current
    scene.pipeline.use(current.rules, Acceptance(current.accept.names, destinations=("shop.*",)))
    scene.now_ms += LADDER
    assert scene.send_on(first).acked == [1]
    record = scene.ledger.records[-1]
    assert (record.retry_id, record.round, record.state) == (retry, 1, "in_review")


def test_a_leg_that_the_broker_does_not_accept_stays(scene: Scene) -> None:
    first = scene.schedule()
    scene.fakes.outcomes["m-1"] = PublishOutcome.UNKNOWN
    recorded = len(scene.ledger.legs)
    assert scene.send_on(first) == BatchResult([], [1])
    assert len(scene.ledger.legs) == recorded


def test_a_frozen_router_does_not_send_what_another_may_have(scene: Scene) -> None:
    first = scene.schedule()
    before = len(scene.fakes.published)
    assert asyncio.run(scene.handler([arrived(first)], lambda: True)) == BatchResult([], [1])
    assert len(scene.fakes.published) == before


def test_a_leg_of_a_message_that_returns_through_its_exchange_keeps_that_way(scene: Scene) -> None:
    policy = scene.pipeline.current.rules.policies[0].model_copy(update={"return_to": "exchange", "schedule": (WEEK,)})
    rules = replace(scene.pipeline.current.rules, policies=(policy,), tiers=frozenset())
    scene.pipeline.use(rules, scene.pipeline.current.accept)
    handle(scene.pipeline.current, rejected("orders", exchange="shop", key="order.created", message_id=b"m-1"))
    first = scene.fakes.published[-1]
    assert keys(first, b"tarry-layover")[-1] == "~via:shop"
    scene.now_ms += WEEK
    assert scene.send_on(first).acked == [1]
    assert keys(scene.fakes.published[-1])[-1] == "~via:shop"


def _without_header(message: Message) -> Message:
    kept = cut(message.properties.headers or b"", b"tarry-layover".__eq__)
    return replace(message, properties=replace(message.properties, headers=kept))


def _with_header(*items: str) -> Callable[[Message], Message]:
    def change(message: Message) -> Message:
        made = _without_header(message)
        header = named("tarry-layover", array(*map(text, items)))
        return replace(made, properties=replace(made.properties, headers=(made.properties.headers or b"") + header))

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_without_header, "it is not on a leg"),
        (_with_header(), "is not one that tarry writes"),
        (_with_header("1"), "is not one that tarry writes"),
        (_with_header("0", "~to:orders"), "is not one that tarry writes"),
        (_with_header("one", "~to:orders"), "is not one that tarry writes"),
        (_with_header("1", "~in:8s", "~to:orders"), "is not one that tarry writes"),
        (_with_header("1", "~to:orders", "~auto"), "is not one that tarry writes"),
        (_with_header("1", "~to:payroll"), "names another destination"),
    ],
)
def test_a_message_that_is_not_on_a_leg_goes_to_review(
    scene: Scene, change: Callable[[Message], Message], why: str
) -> None:
    forged = change(scene.schedule())
    assert scene.send_on(forged).acked == [1]
    sent = scene.fakes.published[-1]
    assert sent.exchange == "retry.review"
    assert why.encode() in (sent.properties.headers or b"")
    assert why in (scene.ledger.records[-1].reason or "")
    assert scene.counted["review"] == 1


def test_a_due_time_beyond_a_year_was_forged_and_goes_to_review(scene: Scene) -> None:
    first = scene.schedule()
    scene.now_ms -= 400 * 86_400_000
    scene.send_on(first)
    assert scene.fakes.published[-1].exchange == "retry.review"


def test_a_refused_tier_makes_a_long_delay_take_legs(scene: Scene) -> None:
    policy = scene.pipeline.current.rules.policies[0].model_copy(update={"schedule": (WEEK,)})
    scene.fakes.refused["~in:168h"] = PublishOutcome.NACKED
    handle(
        replace(scene.fakes.pipeline(policy), now_ms=lambda: NOW),
        published({"original_queue": "orders"}, message_id=b"m-1"),
    )
    tier, detour = scene.fakes.published
    assert (keys(tier)[0], keys(tier)[-1]) == ("~in:168h", "~to:orders")
    assert (keys(detour)[0], keys(detour)[-1]) == ("~in:ladder", "~layover")
    assert scene.ledger.legs[0].delay_ms == WEEK


def _unroutable(scene: Scene) -> UnroutableHandler:
    async def bind(_: object) -> str | None:
        return "no such queue"

    return UnroutableHandler(scene.pipeline, scene.ledger, bind, lambda *_: None)


def test_an_unroutable_leg_is_sent_on_and_not_home(scene: Scene) -> None:
    """The broker lost its keys, or the layover queue is missing; whether its queue exists matters at its due time."""
    first = scene.schedule()
    scene.now_ms += LADDER
    assert asyncio.run(_unroutable(scene)([arrived(first)])).acked == [1]
    second = scene.fakes.published[-1]
    assert keys(second, b"tarry-layover") == ["2", *HOME]
    assert keys(second)[-1] == "~layover"
    assert (scene.ledger.legs[-1].leg, scene.ledger.unroutable) == (2, [(scene.ledger.legs[0].retry_id, 1)])
    assert plain(second) == plain(first) + headers({"tarry-strays": 1})


def test_unroutable_legs_do_not_count_towards_giving_up(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the layover queue, each leg of a long delay is unroutable once."""
    monkeypatch.setattr(unroutable, "LONGEST_REST", 0.0)
    message = scene.schedule(90 * 86_400_000)
    for _ in range(28):
        scene.now_ms += LADDER
        asyncio.run(_unroutable(scene)([arrived(message)]))
        message = scene.fakes.published[-1]
        assert message.exchange == "retry.delay"


def test_an_unroutable_leg_whose_successor_is_recorded_is_dropped(scene: Scene) -> None:
    first = scene.schedule()
    scene.ledger.sent_on.add(scene.ledger.legs[0].key)
    before = len(scene.fakes.published)
    assert asyncio.run(_unroutable(scene)([arrived(first)])).acked == [1]
    assert len(scene.fakes.published) == before


def test_leg_keys_differ_by_due_time_and_count_on() -> None:
    leg = Leg("r", 1, 5, "c", 2, "t", 0, 5, None)
    assert leg.key.next == LegKey("r", 1, 5, "c", 3)
