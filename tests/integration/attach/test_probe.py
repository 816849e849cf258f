from __future__ import annotations

import json
import threading
import time

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tarry.attach import probe
from tarry.attach.apply import AttachRequest, attach
from tarry.attach.probe import Twin, prove
from tarry.errors import BrokerError
from tests.integration.attach.installation import AttachInstallation

INTAKE = {"dead-letter-exchange": "retry.intake"}


@pytest.fixture
def _gives_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the dead letter that never comes; the probe itself has as long as it needs on a busy machine."""
    whole = probe._take

    def take(channel: BlockingChannel, queue: str) -> int | None:
        with monkeypatch.context() as changed:
            if queue.endswith(".spy"):
                changed.setattr(probe, "DEADLINE_S", 1.0)
            return whole(channel, queue)

    monkeypatch.setattr(probe, "_take", take)


def a_twin(
    installation: AttachInstallation, kind: str, arguments: dict[str, str] | None = None, **definition: object
) -> Twin:
    keys = INTAKE | {key.replace("_", "-"): value for key, value in definition.items()}
    where = f"{kind}_queues" if installation.snapshot().version >= (3, 12) else "queues"
    return Twin(kind, tuple((arguments or {}).items()), json.dumps(keys), where)


def prove_it(installation: AttachInstallation, twin: Twin) -> None:
    prove(installation.channel, installation.management, installation.topology.broker_names, twin)


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_a_good_twin_is_proven_and_nothing_is_left(installation: AttachInstallation, kind: str) -> None:
    before = installation.everything()
    prove_it(installation, a_twin(installation, kind))
    assert installation.everything() == before
    for queue in ("retry.scheduled", "retry.audit", "retry.unroutable"):
        assert installation.depth(queue) == 0


@pytest.mark.usefixtures("_gives_up_soon")
def test_a_policy_that_is_void_for_the_type_is_found_out(installation: AttachInstallation) -> None:
    before = installation.everything()
    with pytest.raises(BrokerError, match=r"does not apply the policy .*delivery-limit.* to a classic queue"):
        prove_it(installation, a_twin(installation, "classic", delivery_limit=5))
    assert installation.everything() == before


@pytest.mark.usefixtures("_gives_up_soon")
def test_an_argument_that_beats_the_policy_is_found_out(installation: AttachInstallation) -> None:
    before = installation.everything()
    with pytest.raises(BrokerError, match="was not dead-lettered"):
        prove_it(installation, a_twin(installation, "quorum", {"x-dead-letter-exchange": "elsewhere"}))
    assert installation.everything() == before


def test_an_argument_that_leads_to_tarry_sends_no_probe_there(installation: AttachInstallation) -> None:
    prove_it(installation, a_twin(installation, "quorum", {"x-dead-letter-exchange": "retry.intake"}))
    assert installation.depth("retry.scheduled") == 0


def test_a_live_consumer_of_the_queue_never_sees_a_probe(installation: AttachInstallation) -> None:
    installation.declare("orders")
    seen: list[bytes] = []
    with pika.BlockingConnection(installation.address.parameters("consumer")) as connection:
        consumer = connection.channel()
        consumer.basic_consume("orders", lambda _c, _m, _p, body: seen.append(body), auto_ack=True)
        installation.attach("orders")
        installation.publish("orders", b"real")
        while not seen:
            connection.process_data_events(time_limit=0.1)
    assert seen == [b"real"]


def test_attach_leaves_only_what_it_says(installation: AttachInstallation) -> None:
    installation.declare("orders")
    before = installation.everything()
    (plan,) = installation.attach("orders")
    after = installation.everything()
    assert after["queues"] - before["queues"] == {queue.name for queue in plan.missing.queues}
    assert after["bindings"] - before["bindings"] == {str(binding) for binding in plan.missing.bindings}
    assert after["exchanges"] == before["exchanges"]
    added = {line.split()[0] for line in after["policies"] - before["policies"]}
    assert added == {"tarry.orders", "tarry-fallback.orders"}


def test_a_failed_proof_changes_nothing(installation: AttachInstallation, monkeypatch: pytest.MonkeyPatch) -> None:
    installation.declare("orders")
    before = installation.everything()
    monkeypatch.setattr(probe, "_take", lambda *_: None)
    with pytest.raises(BrokerError, match="nothing was attached"):
        installation.attach("orders")
    assert installation.everything() == before


def test_what_a_probe_cut_off_left_is_swept_and_a_running_one_is_spared(installation: AttachInstallation) -> None:
    stale, running = "tarry-probe.1000000000.ab12cd34", f"tarry-probe.{int(time.time())}.ab12cd34"
    for name in (stale, running):
        installation.policy(name, "^nothing$", max_length=1)
    installation.declare("orders")
    installation.attach("orders")
    names = {policy.name for policy in installation.snapshot().policies}
    assert stale not in names
    assert running in names


def test_a_hundred_alike_are_proven_once(installation: AttachInstallation, monkeypatch: pytest.MonkeyPatch) -> None:
    proven: list[Twin] = []
    monkeypatch.setattr("tarry.attach.apply.prove", lambda _channel, _management, _names, twin: proven.append(twin))
    for number in range(5):
        installation.declare(f"orders.{number}", "classic")
    installation.declare("orders.quorum")
    installation.attach("orders.*")
    assert sorted(twin.type for twin in proven) == ["classic", "quorum"]


def test_attaching_from_several_places_at_once_is_safe(installation: AttachInstallation) -> None:
    names = [installation.declare(f"orders.{number}") for number in range(3)]
    installation.policy("team", "^orders", max_length=10)
    problems: list[BaseException] = []

    def one() -> None:
        try:
            attach(installation.topology, installation.address, AttachRequest(names))
        except BaseException as problem:  # noqa: BLE001  shown below
            problems.append(problem)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert {found.state for found in installation.attachments().values()} == {"ok"}
    assert sorted(installation.attachments()) == names
    assert not [name for name in installation.snapshot().live.queues if "probe" in name]
