from __future__ import annotations

import secrets
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tarry.attach.detach import detach
from tarry.attach.perform import Request, attach
from tarry.attach.remarks import Level
from tarry.broker.address import Address
from tarry.errors import BrokerError, TopologyMismatchError
from tarry.topology.model import Topology
from tarry.topology.rights import deploy_rights
from tests.harness.spaces import Vhost
from tests.integration.attach.world import SMALL, World


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_an_argument_that_beats_the_policy(world: World, kind: str) -> None:
    world.declare("orders", kind, x_dead_letter_exchange="elsewhere")
    before = world.everything()
    (plan,) = world.attach("orders")
    assert "beats any policy" in plan.texts(Level.REFUSAL)[0]
    assert world.everything() == before


def test_dead_letters_that_go_elsewhere_by_policy(world: World) -> None:
    world.declare("orders")
    world.policy("team", "^orders$", dead_letter_exchange="graveyard")
    before = world.everything()
    (plan,) = world.attach("orders")
    assert plan.refused
    assert world.everything() == before
    (plan,) = world.attach("orders", replace_dead_letter=True)
    assert not plan.refused
    world.publish("orders")
    world.reject("orders")
    world.take("retry.scheduled")


def test_queues_that_come_and_go(world: World) -> None:
    world.declare("log", "stream")
    world.channel.queue_declare("mine", exclusive=True)
    world.channel.queue_declare("fleeting", durable=True, auto_delete=True)
    before = world.everything()
    refused = {plan.destination.name: plan.texts(Level.REFUSAL)[0] for plan in world.attach("log", "mine", "fleeting")}
    assert "stream" in refused["log"]
    assert "exclusive" in refused["mine"]
    assert "auto-delete" in refused["fleeting"]
    assert world.everything() == before


def test_attach_refuses_queues_that_can_never_retry(world: World) -> None:
    topology = world.topology.model_copy(update={"destinations": ("ord*", "~*")})
    world.declare("mail")
    world.declare("~orders")
    world.declare("orders", x_dead_letter_exchange="retry.intake", x_dead_letter_routing_key="~to:mail")
    before = world.everything()
    plans = attach(topology, world.address, Request(["mail", "~orders", "orders"]))
    refused = {plan.destination.name: "".join(plan.texts(Level.REFUSAL)) for plan in plans}
    assert "outside the topology's `destinations` (ord*, ~*)" in refused["mail"]
    assert "its name begins with '~'" in refused["~orders"]
    assert "x-dead-letter-routing-key='~to:mail' begins with '~'" in refused["orders"]
    assert world.everything() == before


def test_the_good_ones_of_several_are_attached(world: World) -> None:
    world.declare("orders")
    world.declare("log", "stream")
    world.attach("orders", "log", "missing")
    assert list(world.states()) == ["orders"]


def test_a_vhost_without_the_topology(vhost: Vhost) -> None:
    address = Address.parse(vhost.amqp_url, management_url=vhost.management_url)
    topology = Topology.model_validate(SMALL)
    with pytest.raises(TopologyMismatchError, match="tarry topology apply"):
        attach(topology, address, Request(["orders"]))


class TestAUserWithFewRights:
    """Each case names the right that is missing."""

    @pytest.fixture
    def user(self, vhost: Vhost) -> Iterator[str]:
        name = f"user-{secrets.token_hex(4)}"
        yield name
        vhost.api(f"users/{name}", method="DELETE")

    def address(
        self, vhost: Vhost, user: str, tags: str, *, configure: str = ".*", write: str = ".*", read: str = ".*"
    ) -> Address:
        rights = {"configure": configure, "write": write, "read": read}
        vhost.api(f"users/{user}", method="PUT", body={"password": "secret", "tags": tags})
        vhost.api(f"permissions/{{vhost}}/{user}", method="PUT", body=rights)
        host, port = vhost.address
        web = urlsplit(vhost.management_url)
        login = f"{user}:secret"
        return Address.parse(
            f"amqp://{login}@{host}:{port}/{vhost.name}", management_url=f"http://{login}@{web.hostname}:{web.port}"
        )

    def test_to_set_policies(self, world: World, vhost: Vhost, user: str) -> None:
        world.declare("orders")
        before = world.everything()
        address = self.address(vhost, user, "management")
        with pytest.raises(BrokerError, match=rf"User '{user}' may not .*policymaker"):
            attach(world.topology, address, Request(["orders"]))
        assert world.everything() == before

    def test_to_declare_the_relay(self, world: World, vhost: Vhost, user: str) -> None:
        world.declare("orders")
        before = world.everything()
        address = self.address(vhost, user, "policymaker", configure="^$")
        with pytest.raises(BrokerError, match=r"lacks .*`configure`.*set_permissions"):
            attach(world.topology, address, Request(["orders"]))
        assert world.everything() == before

    def test_to_bind_the_queue(self, world: World, vhost: Vhost, user: str) -> None:
        world.declare("orders")
        address = self.address(vhost, user, "policymaker", write=r"^retry\..*")
        with pytest.raises(BrokerError, match=r"lacks .*`write`.* on queue 'orders'"):
            attach(world.topology, address, Request(["orders"]))
        assert world.applied_policy("orders") is None

    def test_the_deploy_user_of_the_topology_has_all_it_takes(
        self, world: World, vhost: Vhost, user: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tarry.attach.detach.SETTLING_SECONDS", 0.1)
        world.declare("orders")
        topology = world.topology.model_copy(update={"destinations": ("ord*",)})
        rights = deploy_rights(topology)
        address = self.address(
            vhost, user, "policymaker", configure=rights.configure, write=rights.write, read=rights.read
        )
        attach(topology, address, Request(["orders"]))
        assert world.states()["orders"].state == "ok"
        detach(topology, address, queues=["orders"])
        assert world.states() == {}

    def test_a_policymaker_who_is_no_administrator_may(self, world: World, vhost: Vhost, user: str) -> None:
        world.declare("orders")
        attach(world.topology, self.address(vhost, user, "policymaker"), Request(["orders"]))
        assert world.states()["orders"].state == "ok"
