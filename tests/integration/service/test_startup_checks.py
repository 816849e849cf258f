"""A router that cannot do its work does not start, and says in a line what to do."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from tarry.topology.load import load
from tarry.topology.rights import router_rights
from tests.support.installation import Installation
from tests.support.router import Router
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

Start = Callable[..., Router]
User = Callable[[str, str, str], str]


@pytest.fixture
def user(installation: Installation, broker: SharedBroker) -> Iterator[User]:
    """Call it with three patterns; the answer is the AMQP URL of somebody with those rights and no others."""
    name = f"user-{installation.address.vhost}"

    def make(configure: str, write: str, read: str) -> str:
        broker.api(f"users/{name}", method="PUT", body={"password": "secret-word", "tags": "management"})
        rights = {"configure": configure, "write": write, "read": read}
        installation.api(f"permissions/{{vhost}}/{name}", method="PUT", body=rights)
        login, _, rest = installation.amqp_url.rpartition("@")
        return f"{login.partition('://')[0]}://{name}:secret-word@{rest}"

    yield make
    broker.api(f"users/{name}", method="DELETE")


def refusal(router: Router) -> str:
    wait_for(lambda: router.process.poll() is not None, what="the router to refuse")
    assert router.process.returncode == 1
    return router.log.read_text()


def test_when_a_tier_is_missing(installation: Installation, start: Start) -> None:
    installation.channel.queue_delete("retry.delay.5m")
    text = refusal(start())
    assert "retry.delay.5m" in text
    assert "tarry topology apply" in text
    assert "Traceback" not in text


def test_when_the_password_is_wrong(installation: Installation, start: Start) -> None:
    wrong = installation.amqp_url.replace("guest:guest@", "guest:wrong-word@")
    text = refusal(start(RABBITMQ_URL=wrong))
    assert "refused the login" in text
    assert "wrong-word" not in text


def test_when_it_may_not_read_its_queue(installation: Installation, start: Start, user: User) -> None:
    text = refusal(start(RABBITMQ_URL=user("^$", ".*", "^retry.audit$")))
    # Its consumers start side by side: whichever is refused first is named.
    assert any(
        name in text for name in ("queue 'retry.scheduled'", "queue 'retry.unroutable'", "queue 'retry.cancelled'")
    ), text
    assert "rabbitmqctl set_permissions" in text
    assert "secret-word" not in text


def test_when_it_may_not_publish_to_the_tiers(installation: Installation, start: Start, user: User) -> None:
    text = refusal(start(RABBITMQ_URL=user("^$", "^nothing$", ".*")))
    assert "retry.delay" in text
    assert "rabbitmqctl set_permissions" in text


def test_when_the_port_is_taken(installation: Installation, start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        router = start(HTTP_PORT=str(port))
        wait_for(lambda: router.process.poll() is not None, what="the router to refuse")
    assert router.process.returncode == 2
    assert f"Cannot listen on 127.0.0.1:{port}" in router.log.read_text()
    assert "HTTP_PORT" in router.log.read_text()


def test_without_the_management_api_the_ends_of_the_way_are_checked(installation: Installation, start: Start) -> None:
    nobody = "http://127.0.0.1:9"
    assert start(RABBITMQ_MANAGEMENT_URL=nobody).wait_logged("checked only in part")
    installation.channel.exchange_delete("retry.spool")
    text = refusal(start(RABBITMQ_MANAGEMENT_URL=nobody))
    assert "retry.spool" in text
    assert "tarry topology apply" in text


def test_a_user_who_may_configure_nothing_is_enough(installation: Installation, start: Start, user: User) -> None:
    rights = router_rights(load(installation.folder))
    router = start(RABBITMQ_URL=user(rights.configure, rights.write, rights.read)).wait_ready()
    queue = installation.declare("quick.orders")
    installation.request(queue, "m1")
    assert installation.take_ids(queue, 1) == ["m1"]
    installation.request(queue, "m2", error_class="final")
    assert installation.take_ids("manual-review.pending", 1) == ["m2"]
    wait_for(lambda: installation.transitions("returned") == 1)
    assert not router.logged("connection lost")
