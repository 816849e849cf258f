"""The user that the service runs as may configure nothing: cancel, hold and release must do without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict

import pytest

from tarry.control.cancel import cancel, retry_now
from tarry.control.hold import read_holds
from tarry.control.holds import pause, resume
from tarry.control.pauses import active_pauses
from tarry.core.names import Destination
from tarry.errors import BrokerError
from tarry.topology.apply import declare
from tarry.topology.blueprint import destination_blueprint
from tarry.topology.model import Topology
from tarry.topology.rights import router_rights
from tests.harness.spaces import SharedBroker
from tests.harness.waiting import wait_for
from tests.integration.control.hands import Hands
from tests.integration.control.witness import Witness
from tests.integration.router.serving import Place, Router


@pytest.fixture
def limited(broker: SharedBroker, place: Place, topology: Topology) -> Iterator[Hands]:
    """Hands with the router's own user."""
    name, rights = f"router-{place.address.vhost}", asdict(router_rights(topology))
    broker.api(f"users/{name}", method="PUT", body={"password": "pw", "tags": "management"})
    place.api(f"permissions/{{vhost}}/{name}", method="PUT", body=rights)
    yield Hands(place, amqp_url=f"amqp://{name}:pw@{place.amqp_url.rpartition('@')[2]}")
    broker.api(f"users/{name}", method="DELETE")


def _attached(place: Place, topology: Topology, queue: str) -> str:
    declare(place.channel, destination_blueprint(topology.broker_names, Destination("queue", place.origin(queue))))
    return queue


def test_everything_can_be_done_to_an_attached_destination(
    place: Place, limited: Hands, topology: Topology, start: Callable[..., Router]
) -> None:
    queue, hands = _attached(place, topology, "quick.a"), limited
    start(RABBITMQ_URL=limited.amqp_url or "").wait_ready()
    with hands.watching(), Witness(place.amqp_url, queue) as witness:
        place.request(queue, "cancelled", retry_after_ms=5_000)
        place.request(queue, "hurried", retry_after_ms=5_000)
        wait_for(lambda: place.transitions("scheduled") == 2, what="both to wait")
        assert hands.do(lambda desk: cancel(desk, "cancelled", actor="ann")).answer == "cancelled"
        assert hands.do(lambda desk: retry_now(desk, "hurried", actor="ann")).answer == "retried"
        wait_for(lambda: len(witness.seen) == 1, what="the hurried one")
        assert hands.do(lambda desk: pause(desk, queue, actor="ann")).destinations == [queue]
        place.request(queue, "held")
        wait_for(lambda: place.depth(f"retry.held.{queue}") == 1, what="one to be held")
        hands.do(lambda desk: resume(desk, queue, actor="ann"))
        wait_for(lambda: len(witness.seen) == 2, what="the held one")
    assert [one.message_id for one in witness.seen] == ["hurried", "held"]


def test_what_was_never_attached_cannot_be_held_by_it_and_it_says_what_to_do(
    place: Place, limited: Hands, start: Callable[..., Router]
) -> None:
    hands = limited
    start().wait_ready()
    place.request(place.origin("slow.a"), "m")
    wait_for(lambda: place.transitions("scheduled") == 1, what="it to wait")
    with pytest.raises(BrokerError, match=r"'retry\.held\.slow\.a' is not there, and this user may not declare it"):
        hands.do(lambda desk: pause(desk, "slow.a", actor="ann"))
    assert (hands.do(read_holds), hands.do(active_pauses)) == ([], [])
