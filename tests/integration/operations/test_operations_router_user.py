"""The user that the service runs as may configure nothing: cancel, hold and release must do without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

import pytest

from tarry.core.names import Destination
from tarry.errors import BrokerError
from tarry.operations.cancel import cancel
from tarry.operations.pause import active_pauses, pause, resume
from tarry.operations.paused_destination import read_paused_destinations
from tarry.operations.retry_now import retry_now
from tarry.topology.apply import declare
from tarry.topology.blueprint import destination_blueprint
from tarry.topology.model import Topology
from tarry.topology.rights import router_rights
from tests.integration.operations.operators import Operator
from tests.integration.operations.witness import Witness
from tests.support.installation import POLICIES, Installation
from tests.support.router import Router
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for


@pytest.fixture
def limited(broker: SharedBroker, installation: Installation, topology: Topology) -> Iterator[Operator]:
    with router_user(broker, installation, topology) as operator:
        yield operator


@contextmanager
def router_user(broker: SharedBroker, installation: Installation, topology: Topology) -> Iterator[Operator]:
    """Operator with the router's own user."""
    name, rights = f"router-{installation.address.vhost}", asdict(router_rights(topology))
    broker.api(f"users/{name}", method="PUT", body={"password": "pw", "tags": "management"})
    installation.api(f"permissions/{{vhost}}/{name}", method="PUT", body=rights)
    yield Operator(installation, amqp_url=f"amqp://{name}:pw@{installation.amqp_url.rpartition('@')[2]}")
    broker.api(f"users/{name}", method="DELETE")


def _attached(installation: Installation, topology: Topology, queue: str) -> str:
    declare(
        installation.channel,
        destination_blueprint(topology.broker_names, Destination("queue", installation.declare(queue))),
    )
    return queue


def test_everything_can_be_done_to_an_attached_destination(
    installation: Installation, limited: Operator, topology: Topology, start: Callable[..., Router]
) -> None:
    queue, operator = _attached(installation, topology, "quick.a"), limited
    start(RABBITMQ_URL=limited.amqp_url or "").wait_ready()
    with operator.reconciling(), Witness(installation.amqp_url, queue) as witness:
        installation.request(queue, "cancelled", retry_after_ms=5_000)
        installation.request(queue, "hurried", retry_after_ms=5_000)
        wait_for(lambda: installation.transitions("scheduled") == 2, what="both to wait")
        assert operator.do(lambda context: cancel(context, "cancelled", actor="ann")).answer == "cancelled"
        hurried = operator.do(lambda context: retry_now(context, "hurried", actor="ann"))
        assert (hurried.answer, hurried.position) == ("retried", 0)
        wait_for(lambda: len(witness.seen) == 1, what="the hurried one")
        assert operator.do(lambda context: pause(context, queue, actor="ann")).destinations == [queue]
        installation.request(queue, "held")
        wait_for(lambda: installation.depth(f"retry.held.{queue}") == 1, what="one to be held")
        operator.do(lambda context: resume(context, queue, actor="ann"))
        wait_for(lambda: len(witness.seen) == 2, what="the held one")
        wait_for(lambda: operator.do(read_paused_destinations) == [], what="the release to end")
        operator.do(lambda context: pause(context, scope="automatic-retries", actor="ann"))
        installation.request(queue, "automatic")
        wait_for(lambda: installation.depth("retry.held~auto") == 1, what="one to be held as an automatic retry")
        operator.do(lambda context: resume(context, scope="automatic-retries", actor="ann"))
        wait_for(lambda: len(witness.seen) == 3, what="the automatic one")
    assert [one.message_id for one in witness.seen] == ["hurried", "held", "automatic"]


def test_a_retry_in_a_lane_can_be_cancelled(
    broker: SharedBroker, installation: Installation, start: Callable[..., Router]
) -> None:
    installation.write_policies(POLICIES.replace('name = "quick"', 'name = "quick"\nlane = "gold"'))
    topology = installation.apply().topology
    queue = _attached(installation, topology, "quick.a")
    with router_user(broker, installation, topology) as operator:
        start(RABBITMQ_URL=operator.amqp_url or "").wait_ready()
        installation.request(queue, "cancelled", error_class="rate_limited", retry_after_ms=15_000)
        wait_for(lambda: installation.transitions("scheduled") == 1, what="it to wait")
        assert operator.do(lambda context: cancel(context, "cancelled", actor="ann")).answer == "cancelled"
        bindings = installation.api("exchanges/{vhost}/retry.lanes.cancelled/bindings/source")
        assert [binding["destination"] for binding in bindings] == ["retry.cancelled"]


def test_a_pause_of_an_unattached_queue_is_refused_with_the_remedy(
    installation: Installation, limited: Operator, start: Callable[..., Router]
) -> None:
    operator = limited
    start().wait_ready()
    installation.request(installation.declare("slow.a"), "m")
    wait_for(lambda: installation.transitions("scheduled") == 1, what="it to wait")
    with pytest.raises(BrokerError, match=r"'retry\.held\.slow\.a' does not exist, and this user may not declare it"):
        operator.do(lambda context: pause(context, "slow.a", actor="ann"))
    with pytest.raises(BrokerError, match=r"'retry\.held~policy:slow' does not exist.*pause it as the deploy user"):
        operator.do(lambda context: pause(context, "slow", scope="policy", actor="ann"))
    assert (operator.do(read_paused_destinations), operator.do(active_pauses)) == ([], [])
