from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tarry.broker.address import Address
from tarry.errors import BrokerUnreachableError, TopologyMismatchError
from tarry.topology.apply import apply, plan_for
from tarry.topology.definitions import definitions
from tarry.topology.load import load, shipped
from tarry.topology.verify import verify
from tests.harness.proxy import Proxy
from tests.harness.spaces import Vhost
from tests.integration.topology.tools import Installation, command, small_topology


def test_apply_then_verify_is_clean_and_apply_again_changes_nothing(vhost: Vhost) -> None:
    fresh = Installation(vhost, load(shipped()))

    assert command(fresh, "plan").exit_code == 2
    assert "Declared 219" in command(fresh, "apply").stdout
    assert command(fresh, "verify").exit_code == 0
    assert "Nothing to declare" in command(fresh, "apply").stdout
    assert command(fresh, "plan").exit_code == 0


def test_a_fresh_vhost_fed_only_the_definitions_verifies(vhost: Vhost) -> None:
    topology = load(shipped())

    vhost.api("definitions/{vhost}", method="POST", body=definitions(topology, vhost.name))

    assert verify(topology, Installation(vhost).address) == []


def test_two_at_once_on_an_empty_vhost_both_succeed(vhost: Vhost) -> None:
    installation = Installation(vhost)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            apply(installation.topology, installation.address)
        except BaseException as failure:  # noqa: BLE001 - whatever it is belongs to the assertion below
            failures.append(failure)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert verify(installation.topology, installation.address) == []


@pytest.mark.parametrize("after", [3, 40, 100])
def test_cut_off_half_way_it_can_be_run_again(vhost: Vhost, proxy: Callable[[str], Proxy], after: int) -> None:
    wire = proxy(vhost.amqp_url)
    installation = Installation(vhost)
    through = Address.parse(vhost.through(wire.port), management_url=vhost.management_url)

    def cut(done: int, _total: int, _name: str) -> None:
        if done == after:
            wire.cut()

    with pytest.raises(BrokerUnreachableError, match="Run it again"):
        apply(installation.topology, through, cut)

    assert len(apply(installation.topology, through).plan.missing) > 0
    assert verify(installation.topology, installation.address) == []


def test_a_queue_whose_arguments_differ_is_explained_and_nothing_is_changed(installation: Installation) -> None:
    with installation.channel() as opened:
        opened.queue_delete("retry.delay.8s")
        opened.queue_delete("retry.ladder.0.125ms")
        wrong = {"x-queue-type": "quorum", "x-message-ttl": 7_000, "x-dead-letter-exchange": "retry.ladder.6"}
        opened.queue_declare("retry.delay.8s", durable=True, arguments=wrong)

    with pytest.raises(TopologyMismatchError) as refused:
        installation.apply()

    assert "Nothing was changed" in str(refused.value)
    assert "x-message-ttl is 7000, should be 8000" in str(refused.value)
    assert "`tarry topology drain retry.delay.8s`" in str(refused.value)
    with installation.channel() as opened:
        assert opened.queue_declare("retry.delay.8s", passive=True).method.message_count == 0
    plan = plan_for(installation.topology, installation.address)
    assert [queue.name for queue in plan.missing.queues] == ["retry.ladder.0.125ms"]


def test_two_installations_share_a_vhost(vhost: Vhost) -> None:
    first = Installation(vhost).apply()
    second = Installation(vhost, small_topology(names={"prefix": "retry.b."})).apply()

    assert verify(first.topology, first.address) == []
    assert verify(second.topology, second.address) == []
