from __future__ import annotations

import pytest

from tarry.attach.exchanges import plan_exchange, takes_single_words
from tarry.attach.findings import Level
from tarry.attach.plan import AttachPlan
from tarry.topology.broker_policies import BrokerPolicy
from tarry.topology.objects import Binding, Exchange
from tests.unit.attach.snapshots import a_snapshot, an_exchange


def said(found: AttachPlan, level: Level) -> str:
    return "\n".join(found.texts(level))


@pytest.mark.parametrize("key", ["*", "#.*", "*.#", "#.*.#"])
def test_a_binding_of_one_star_takes_our_keys(key: str) -> None:
    assert takes_single_words(key)
    exchanges = (an_exchange("events", alternate="spare"),)
    found = plan_exchange(a_snapshot(exchanges=exchanges, bindings=(Binding("events", key, "logger"),)), "events")
    assert found.refused
    assert f"events ─{key}▶ queue logger" in said(found, Level.REFUSAL)


@pytest.mark.parametrize("key", ["#", "#.#", "*.*", "orders.*", "orders.#", "", "~*"])
def test_other_bindings_take_a_message_only_for_its_own_key(key: str) -> None:
    assert not takes_single_words(key)
    found = plan_exchange(
        a_snapshot(exchanges=(an_exchange("events"),), bindings=(Binding("events", key, "q"),)), "events"
    )
    assert not found.refused


def test_a_star_behind_another_exchange_is_found_too() -> None:
    exchanges = (an_exchange("events"), an_exchange("inner"), an_exchange("events2", "direct"))
    bindings = (
        Binding("events", "orders.#", "inner", "exchange"),
        Binding("inner", "*", "logger"),
        Binding("inner", "x.y", "events", "exchange"),
    )
    found = plan_exchange(a_snapshot(exchanges=exchanges, bindings=bindings), "events")
    assert "inner ─*▶ queue logger" in said(found, Level.REFUSAL)


def test_a_star_on_a_direct_exchange_is_just_a_word() -> None:
    exchanges = (an_exchange("events", "direct", alternate="spare"),)
    assert not plan_exchange(a_snapshot(exchanges=exchanges, bindings=(Binding("events", "*", "q"),)), "events").refused


def test_relay_and_way_home_are_planned() -> None:
    found = plan_exchange(a_snapshot(exchanges=(an_exchange("app.events"),)), "app.events")
    assert found.policy is None
    assert [queue.name for queue in found.missing.queues] == [
        "retry.relay.exchange:app.events",
        "retry.held.exchange:app.events",
    ]
    assert found.missing.bindings == (
        Binding("retry.deliver", "~via:app%2Eevents", "app.events", "exchange"),
        Binding("retry.relay", "~via:app%2Eevents", "retry.relay.exchange:app.events"),
    )


@pytest.mark.parametrize(
    ("exchange", "reason"),
    [
        (an_exchange("events", "x-consistent-hash"), "'x-consistent-hash'"),
        (an_exchange("events", durable=False), "not durable"),
        (an_exchange("retry.other"), "belongs to tarry"),
        (an_exchange("amq.topic"), "belongs to tarry or to the broker"),
    ],
)
def test_what_cannot_work_is_refused(exchange: Exchange, reason: str) -> None:
    assert reason in said(plan_exchange(a_snapshot(exchanges=(exchange,)), exchange.name), Level.REFUSAL)


def test_an_exchange_that_is_not_there_is_refused() -> None:
    assert "no such exchange" in said(plan_exchange(a_snapshot(), "events"), Level.REFUSAL)


@pytest.mark.parametrize(("kind", "word"), [("fanout", "every queue bound"), ("headers", "headers exchange")])
def test_kinds_that_send_a_retry_to_everybody_are_warned_of(kind: str, word: str) -> None:
    assert word in said(plan_exchange(a_snapshot(exchanges=(an_exchange("events", kind),)), "events"), Level.WARNING)


def test_an_exchange_that_drops_what_matches_nothing_is_warned_of() -> None:
    bare = a_snapshot(exchanges=(an_exchange("events"),), bindings=(Binding("events", "orders.#", "orders"),))
    assert "no alternate exchange" in said(plan_exchange(bare, "events"), Level.WARNING)


@pytest.mark.parametrize(
    ("exchange", "bindings", "policies"),
    [
        (an_exchange("events", alternate="spare"), (), ()),
        (an_exchange("events"), (Binding("events", "#", "all"),), ()),
        (an_exchange("events", "fanout"), (Binding("events", "", "all"),), ()),
        (
            an_exchange("events"),
            (),
            (BrokerPolicy("ae", "^events$", "exchanges", 0, {"alternate-exchange": "spare"}),),
        ),
    ],
)
def test_an_exchange_that_takes_everything_is_not(
    exchange: Exchange, bindings: tuple[Binding, ...], policies: tuple[BrokerPolicy, ...]
) -> None:
    snapshot = a_snapshot(exchanges=(exchange,), bindings=bindings, policies=policies)
    assert "no alternate exchange" not in said(plan_exchange(snapshot, "events"), Level.WARNING)
