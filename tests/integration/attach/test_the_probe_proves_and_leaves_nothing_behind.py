from __future__ import annotations

import json
import threading
import time

import pika
import pytest

from tarry.attach import probe
from tarry.attach.perform import Request, attach
from tarry.attach.probe import Twin, prove
from tarry.errors import BrokerError
from tests.integration.attach.world import World

INTAKE = {"dead-letter-exchange": "retry.intake"}


@pytest.fixture(autouse=True)
def _a_short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "DEADLINE_S", 2.0)


def a_twin(world: World, kind: str, arguments: dict[str, str] | None = None, **definition: object) -> Twin:
    keys = INTAKE | {key.replace("_", "-"): value for key, value in definition.items()}
    where = f"{kind}_queues" if world.survey().version >= (3, 12) else "queues"
    return Twin(kind, tuple((arguments or {}).items()), json.dumps(keys), where)


def prove_it(world: World, twin: Twin) -> None:
    prove(world.channel, world.management, world.topology.broker_names, twin)


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_a_good_twin_is_proven_and_nothing_is_left(world: World, kind: str) -> None:
    before = world.everything()
    prove_it(world, a_twin(world, kind))
    assert world.everything() == before
    for queue in ("retry.scheduled", "retry.audit", "retry.unroutable"):
        assert world.depth(queue) == 0


def test_a_policy_that_is_void_for_the_type_is_found_out(world: World) -> None:
    before = world.everything()
    with pytest.raises(BrokerError, match=r"does not apply the policy .*delivery-limit.* to a classic queue"):
        prove_it(world, a_twin(world, "classic", delivery_limit=5))
    assert world.everything() == before


def test_an_argument_that_beats_the_policy_is_found_out(world: World) -> None:
    before = world.everything()
    with pytest.raises(BrokerError, match="did not come out as a dead letter"):
        prove_it(world, a_twin(world, "quorum", {"x-dead-letter-exchange": "elsewhere"}))
    assert world.everything() == before


def test_an_argument_that_leads_to_tarry_sends_no_probe_there(world: World) -> None:
    prove_it(world, a_twin(world, "quorum", {"x-dead-letter-exchange": "retry.intake"}))
    assert world.depth("retry.scheduled") == 0


def test_a_live_consumer_of_the_queue_never_sees_a_probe(world: World) -> None:
    world.declare("orders")
    seen: list[bytes] = []
    with pika.BlockingConnection(world.address.parameters("consumer")) as connection:
        consumer = connection.channel()
        consumer.basic_consume("orders", lambda _c, _m, _p, body: seen.append(body), auto_ack=True)
        world.attach("orders")
        world.publish("orders", b"real")
        while not seen:
            connection.process_data_events(time_limit=0.1)
    assert seen == [b"real"]


def test_attach_leaves_only_what_it_says(world: World) -> None:
    world.declare("orders")
    before = world.everything()
    (plan,) = world.attach("orders")
    after = world.everything()
    assert after["queues"] - before["queues"] == {queue.name for queue in plan.missing.queues}
    assert after["bindings"] - before["bindings"] == {str(binding) for binding in plan.missing.bindings}
    assert after["exchanges"] == before["exchanges"]
    added = {line.split()[0] for line in after["policies"] - before["policies"]}
    assert added == {"tarry.orders", "tarry-fallback.orders"}


def test_a_failed_proof_changes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.declare("orders")
    before = world.everything()
    monkeypatch.setattr(probe, "_take", lambda *_: None)
    with pytest.raises(BrokerError, match="nothing was attached"):
        world.attach("orders")
    assert world.everything() == before


def test_what_a_probe_cut_off_left_is_swept_and_a_running_one_is_spared(world: World) -> None:
    stale, running = "tarry-probe.1000000000.ab12cd34", f"tarry-probe.{int(time.time())}.ab12cd34"
    for name in (stale, running):
        world.policy(name, "^nothing$", max_length=1)
    world.declare("orders")
    world.attach("orders")
    names = {policy.name for policy in world.survey().policies}
    assert stale not in names
    assert running in names


def test_a_hundred_alike_are_proven_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    proven: list[Twin] = []
    monkeypatch.setattr("tarry.attach.perform.prove", lambda _channel, _management, _names, twin: proven.append(twin))
    for number in range(5):
        world.declare(f"orders.{number}", "classic")
    world.declare("orders.quorum")
    world.attach("orders.*")
    assert sorted(twin.type for twin in proven) == ["classic", "quorum"]


def test_attaching_from_several_places_at_once_is_safe(world: World) -> None:
    names = [world.declare(f"orders.{number}") for number in range(3)]
    world.policy("team", "^orders", max_length=10)
    problems: list[BaseException] = []

    def one() -> None:
        try:
            attach(world.topology, world.address, Request(names))
        except BaseException as problem:  # noqa: BLE001  shown below
            problems.append(problem)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert {found.state for found in world.states().values()} == {"ok"}
    assert sorted(world.states()) == names
    assert not [name for name in world.survey().live.queues if "probe" in name]
