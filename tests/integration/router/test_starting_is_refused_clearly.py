"""A router that cannot do its work does not start, and says in a line what to do."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from tarry.topology.load import load
from tarry.topology.rights import router_rights
from tests.harness.spaces import SharedBroker
from tests.harness.waiting import wait_for
from tests.integration.router.serving import Place, Router

Start = Callable[..., Router]
User = Callable[[str, str, str], str]


@pytest.fixture
def user(place: Place, broker: SharedBroker) -> Iterator[User]:
    """Call it with three patterns; the answer is the AMQP URL of somebody with those rights and no others."""
    name = f"user-{place.address.vhost}"

    def make(configure: str, write: str, read: str) -> str:
        broker.api(f"users/{name}", method="PUT", body={"password": "secret-word", "tags": "management"})
        rights = {"configure": configure, "write": write, "read": read}
        place.api(f"permissions/{{vhost}}/{name}", method="PUT", body=rights)
        login, _, rest = place.amqp_url.rpartition("@")
        return f"{login.partition('://')[0]}://{name}:secret-word@{rest}"

    yield make
    broker.api(f"users/{name}", method="DELETE")


def refusal(router: Router) -> str:
    wait_for(lambda: router.process.poll() is not None, what="the router to refuse")
    assert router.process.returncode == 1
    return router.log.read_text()


def test_when_a_tier_is_missing(place: Place, start: Start) -> None:
    place.channel.queue_delete("retry.delay.5m")
    text = refusal(start())
    assert "retry.delay.5m" in text
    assert "tarry topology apply" in text
    assert "Traceback" not in text


def test_when_the_password_is_wrong(place: Place, start: Start) -> None:
    wrong = place.amqp_url.replace("guest:guest@", "guest:wrong-word@")
    text = refusal(start(RABBITMQ_URL=wrong))
    assert "refused the login" in text
    assert "wrong-word" not in text


def test_when_it_may_not_read_its_queue(place: Place, start: Start, user: User) -> None:
    text = refusal(start(RABBITMQ_URL=user("^$", ".*", "^retry.audit$")))
    assert "retry.scheduled" in text or "retry.unroutable" in text
    assert "rabbitmqctl set_permissions" in text
    assert "secret-word" not in text


def test_when_it_may_not_publish_to_the_tiers(place: Place, start: Start, user: User) -> None:
    text = refusal(start(RABBITMQ_URL=user("^$", "^nothing$", ".*")))
    assert "retry.delay" in text
    assert "rabbitmqctl set_permissions" in text


def test_when_the_port_is_taken(place: Place, start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        router = start(HTTP_PORT=str(port))
        wait_for(lambda: router.process.poll() is not None, what="the router to refuse")
    assert router.process.returncode == 2
    assert f"Cannot listen on 127.0.0.1:{port}" in router.log.read_text()
    assert "HTTP_PORT" in router.log.read_text()


def test_without_the_management_api_the_ends_of_the_way_are_checked(place: Place, start: Start) -> None:
    nobody = "http://127.0.0.1:9"
    assert start(RABBITMQ_MANAGEMENT_URL=nobody).wait_said("checked only in part")
    place.channel.exchange_delete("retry.spool")
    text = refusal(start(RABBITMQ_MANAGEMENT_URL=nobody))
    assert "retry.spool" in text
    assert "tarry topology apply" in text


def test_a_user_who_may_configure_nothing_is_enough(place: Place, start: Start, user: User) -> None:
    rights = router_rights(load(place.folder))
    router = start(RABBITMQ_URL=user(rights.configure, rights.write, rights.read)).wait_ready()
    queue = place.origin("quick.orders")
    place.request(queue, "m1")
    assert place.take(queue, 1) == ["m1"]
    place.request(queue, "m2", error_class="final")
    assert place.take("manual-review.pending", 1) == ["m2"]
    wait_for(lambda: place.transitions("returned") == 1)
    assert not router.said("connection lost")
