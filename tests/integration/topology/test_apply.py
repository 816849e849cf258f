from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tarry.amqp.management import Management
from tarry.amqp.url import Address
from tarry.core.names import AUTOMATIC, GATE_KINDS, Destination, Names
from tarry.errors import BrokerUnreachableError, TopologyMismatchError
from tarry.topology.apply import apply, declare
from tarry.topology.blueprint import blueprint, former_bindings, former_first_gate
from tarry.topology.definitions import definitions
from tarry.topology.findings import APPLY
from tarry.topology.live import read_live
from tarry.topology.load import load, shipped
from tarry.topology.objects import Blueprint
from tarry.topology.plan import make_plan
from tarry.topology.verify import verify
from tests.integration.topology.installation import TopologyInstallation, command, drained, small_topology
from tests.support.proxy import Proxy
from tests.support.spaces import Vhost


def test_apply_then_verify_is_clean_and_apply_again_changes_nothing(vhost: Vhost) -> None:
    fresh = TopologyInstallation(vhost, load(shipped()))

    assert command(fresh, "plan").exit_code == 2
    assert "Declared 233" in command(fresh, "apply").stdout
    assert command(fresh, "verify").exit_code == 0
    assert "Nothing to declare" in command(fresh, "apply").stdout
    assert command(fresh, "plan").exit_code == 0


def test_a_fresh_vhost_fed_only_the_definitions_verifies(vhost: Vhost) -> None:
    topology = load(shipped())

    vhost.api("definitions/{vhost}", method="POST", body=definitions(topology, vhost.name))

    assert verify(topology, TopologyInstallation(vhost).address) == []


def test_two_at_once_on_an_empty_vhost_both_succeed(vhost: Vhost) -> None:
    installation = TopologyInstallation(vhost)
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
    installation = TopologyInstallation(vhost)
    through = Address.parse(vhost.through(wire.port), management_url=vhost.management_url)

    def cut(done: int, _total: int, _name: str) -> None:
        if done == after:
            wire.cut()

    with pytest.raises(BrokerUnreachableError, match="Run it again"):
        apply(installation.topology, through, cut)

    assert len(apply(installation.topology, through).plan.missing) > 0
    assert verify(installation.topology, installation.address) == []


def test_a_queue_with_other_arguments_is_explained_and_not_changed(installation: TopologyInstallation) -> None:
    with installation.open_channel() as opened:
        opened.queue_delete("retry.delay.8s")
        opened.queue_delete("retry.ladder.0.125ms")
        wrong = {"x-queue-type": "quorum", "x-message-ttl": 7_000, "x-dead-letter-exchange": "retry.ladder.6"}
        opened.queue_declare("retry.delay.8s", durable=True, arguments=wrong)

    with pytest.raises(TopologyMismatchError) as refused:
        installation.apply()

    assert "Nothing was changed" in str(refused.value)
    assert "x-message-ttl is 7000, should be 8000" in str(refused.value)
    assert "`tarry topology drain retry.delay.8s`" in str(refused.value)
    with installation.open_channel() as opened:
        assert opened.queue_declare("retry.delay.8s", passive=True).method.message_count == 0
    live = read_live(Management(installation.address))
    plan = make_plan(installation.names, blueprint(installation.topology), live)
    assert [queue.name for queue in plan.missing.queues] == ["retry.ladder.0.125ms"]


def test_two_installations_share_a_vhost(vhost: Vhost) -> None:
    first = TopologyInstallation(vhost).apply()
    second = TopologyInstallation(vhost, small_topology(names={"prefix": "retry.b."})).apply()

    assert verify(first.topology, first.address) == []
    assert verify(second.topology, second.address) == []


def test_apply_brings_gates_to_an_installation_of_the_previous_version(vhost: Vhost) -> None:
    """In every state that an interrupted apply can leave, a message is delivered once and recorded once."""
    installation = TopologyInstallation(vhost).apply()
    with installation.open_channel() as opened:
        installation.attach(opened, "orders")
        _as_before_the_gates(installation, opened)
        _passes_once(installation, opened)
        assert {finding.check for finding in verify(installation.topology, installation.address)} >= {
            "missing",
            "binding",
        }
        declare(opened, blueprint(installation.topology))  # all that apply does, without the removal at its end
        _passes_once(installation, opened)
        assert [finding.mend for finding in verify(installation.topology, installation.address)] == [APPLY] * 2
        done = apply(installation.topology, installation.address)
        assert (done.declared, set(done.plan.former)) == (0, set(former_bindings(installation.names)[:2]))
        assert verify(installation.topology, installation.address) == []
        _passes_once(installation, opened)


def test_apply_brings_the_gate_for_checks_to_an_installation_of_the_previous_version(vhost: Vhost) -> None:
    """A message with the key of a check goes to one queue in every state that an interrupted apply can leave."""
    policy = {"name": "all", "schedule": ["1s"], "max_retries": 1, "eligibility": {"at": "due"}}
    installation = TopologyInstallation(vhost, small_topology(policy=[policy])).apply()
    [check], names = installation.topology.rules.checks, installation.names
    queue, keys = names.check_queue(*check), [check.key, Destination("queue", "orders").key]
    with installation.open_channel() as opened:
        installation.attach(opened, "orders")
        declare(opened, Blueprint((), (), (former_first_gate(names),)))
        opened.queue_delete(queue)
        opened.exchange_delete(names.check_gate)
        _goes_to("orders", not_to=None, installation=installation, keys=keys)

        with pytest.raises(KeyboardInterrupt):
            apply(installation.topology, installation.address, _interrupt_at_the_end)
        _goes_to("orders", not_to=queue, installation=installation, keys=keys)
        problems = [finding.problem for finding in verify(installation.topology, installation.address)]
        assert any("although its check queue has it" in problem for problem in problems)

        done = apply(installation.topology, installation.address)
        assert done.plan.former == (former_first_gate(names),)
        assert verify(installation.topology, installation.address) == []
        _goes_to(queue, not_to="orders", installation=installation, keys=keys)


def _goes_to(queue: str, *, not_to: str | None, installation: TopologyInstallation, keys: list[Any]) -> None:
    about = pika.BasicProperties(headers={"BCC": keys}, delivery_mode=2)
    installation.channel.basic_publish(installation.names.arrive, "", b"payload", about, mandatory=True)
    assert installation.wait_message(queue)[1] == b"payload"
    assert installation.get(queue) is None
    assert not_to is None or installation.get(not_to) is None


def _interrupt_at_the_end(done: int, total: int, _name: str) -> None:
    if done == total:
        raise KeyboardInterrupt


def _as_before_the_gates(installation: TopologyInstallation, opened: BlockingChannel) -> None:
    for binding in former_bindings(installation.names):
        bind = opened.queue_bind if binding.destination_type == "queue" else opened.exchange_bind
        bind(binding.destination, binding.source, binding.key)
    for exchange in blueprint(installation.topology).exchanges:
        if ".recheck." in exchange.name or exchange.name in ("retry.home", *map(Names().gate, GATE_KINDS)):
            opened.exchange_delete(exchange.name)
    opened.queue_delete(installation.names.held_queue(AUTOMATIC))


def _passes_once(installation: TopologyInstallation, opened: BlockingChannel) -> None:
    installation.schedule(opened, "orders", 0)
    for queue in ("orders", installation.names.audit):
        assert len(drained(opened, queue, 1, deadline=30)) == 1
        assert drained(opened, queue, 1, deadline=1) == []
