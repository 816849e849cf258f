from __future__ import annotations

import secrets
import tomllib
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tarry.amqp.url import Address
from tarry.attach.apply import AttachRequest, attach
from tarry.attach.detach import detach
from tarry.attach.findings import Level
from tarry.errors import BrokerError, TopologyMismatchError
from tarry.topology.model import Topology
from tarry.topology.rights import deploy_rights
from tests.integration.attach.installation import SMALL, AttachInstallation
from tests.support.spaces import Vhost


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_an_argument_that_beats_the_policy(installation: AttachInstallation, kind: str) -> None:
    installation.declare("orders", kind, x_dead_letter_exchange="elsewhere")
    before = installation.everything()
    (plan,) = installation.attach("orders")
    assert "overrides any policy" in plan.texts(Level.REFUSAL)[0]
    assert installation.everything() == before


def test_dead_letters_that_go_elsewhere_by_policy(installation: AttachInstallation) -> None:
    installation.declare("orders")
    installation.policy("team", "^orders$", dead_letter_exchange="graveyard")
    before = installation.everything()
    (plan,) = installation.attach("orders")
    assert plan.refused
    assert installation.everything() == before
    (plan,) = installation.attach("orders", replace_dead_letter=True)
    assert not plan.refused
    installation.publish("orders")
    installation.reject("orders")
    installation.take("retry.scheduled")


def test_queues_that_come_and_go(installation: AttachInstallation) -> None:
    installation.declare("log", "stream")
    installation.channel.queue_declare("mine", exclusive=True)
    installation.channel.queue_declare("fleeting", durable=True, auto_delete=True)
    before = installation.everything()
    refused = {
        plan.destination.name: plan.texts(Level.REFUSAL)[0] for plan in installation.attach("log", "mine", "fleeting")
    }
    assert "stream" in refused["log"]
    assert "exclusive" in refused["mine"]
    assert "auto-delete" in refused["fleeting"]
    assert installation.everything() == before


def test_attach_refuses_queues_that_can_never_retry(installation: AttachInstallation) -> None:
    topology = installation.topology.model_copy(update={"destinations": ("ord*", "~*")})
    installation.declare("mail")
    installation.declare("~orders")
    installation.declare("orders", x_dead_letter_exchange="retry.intake", x_dead_letter_routing_key="~to:mail")
    before = installation.everything()
    plans = attach(topology, installation.address, AttachRequest(["mail", "~orders", "orders"]))
    refused = {plan.destination.name: "".join(plan.texts(Level.REFUSAL)) for plan in plans}
    assert "outside the topology's `destinations` (ord*, ~*)" in refused["mail"]
    assert "its name begins with '~'" in refused["~orders"]
    assert "x-dead-letter-routing-key='~to:mail' begins with '~'" in refused["orders"]
    assert installation.everything() == before


def test_the_good_ones_of_several_are_attached(installation: AttachInstallation) -> None:
    installation.declare("orders")
    installation.declare("log", "stream")
    installation.attach("orders", "log", "missing")
    assert list(installation.attachments()) == ["orders"]


def test_a_vhost_without_the_topology(vhost: Vhost) -> None:
    address = Address.parse(vhost.amqp_url, management_url=vhost.management_url)
    topology = Topology.model_validate(tomllib.loads(SMALL))
    with pytest.raises(TopologyMismatchError, match="tarry topology apply"):
        attach(topology, address, AttachRequest(["orders"]))


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

    def test_to_set_policies(self, installation: AttachInstallation, vhost: Vhost, user: str) -> None:
        installation.declare("orders")
        before = installation.everything()
        address = self.address(vhost, user, "management")
        with pytest.raises(BrokerError, match=rf"User '{user}' may not .*policymaker"):
            attach(installation.topology, address, AttachRequest(["orders"]))
        assert installation.everything() == before

    def test_to_declare_the_relay(self, installation: AttachInstallation, vhost: Vhost, user: str) -> None:
        installation.declare("orders")
        before = installation.everything()
        address = self.address(vhost, user, "policymaker", configure="^$")
        with pytest.raises(BrokerError, match=r"lacks .*`configure`.*set_permissions"):
            attach(installation.topology, address, AttachRequest(["orders"]))
        assert installation.everything() == before

    def test_to_bind_the_queue(self, installation: AttachInstallation, vhost: Vhost, user: str) -> None:
        installation.declare("orders")
        address = self.address(vhost, user, "policymaker", write=r"^retry\..*")
        with pytest.raises(BrokerError, match=r"lacks .*`write`.* on queue 'orders'"):
            attach(installation.topology, address, AttachRequest(["orders"]))
        assert installation.applied_policy("orders") is None

    def test_the_deploy_user_of_the_topology_has_all_it_takes(
        self, installation: AttachInstallation, vhost: Vhost, user: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tarry.attach.detach.SETTLING_SECONDS", 0.1)
        installation.declare("orders")
        topology = installation.topology.model_copy(update={"destinations": ("ord*",)})
        rights = deploy_rights(topology)
        address = self.address(
            vhost, user, "policymaker", configure=rights.configure, write=rights.write, read=rights.read
        )
        attach(topology, address, AttachRequest(["orders"]))
        assert installation.attachments()["orders"].state == "ok"
        detach(topology, address, queues=["orders"])
        assert installation.attachments() == {}

    def test_a_policymaker_who_is_no_administrator_may(
        self, installation: AttachInstallation, vhost: Vhost, user: str
    ) -> None:
        installation.declare("orders")
        attach(installation.topology, self.address(vhost, user, "policymaker"), AttachRequest(["orders"]))
        assert installation.attachments()["orders"].state == "ok"
