"""Users with no more rights than they need, vhosts with odd names, and TLS."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from tarry import embedded
from tarry.amqp.declare import Rights, connect
from tarry.amqp.url import Address
from tarry.core.names import Destination
from tarry.embedded import ports
from tarry.errors import BrokerError
from tarry.topology.apply import apply, declare
from tarry.topology.blueprint import way_home
from tarry.topology.definitions import BrokerUser, definitions, definitions_text, deploy_user, hashed, router_user
from tarry.topology.objects import Blueprint
from tarry.topology.verify import verify
from tests.integration.topology.installation import TopologyInstallation, command, drained, small_topology
from tests.support.spaces import SharedBroker, Vhost


def login(vhost: Vhost, user: str, password: str) -> Address:
    plain = Address.parse(vhost.amqp_url, management_url=vhost.management_url)
    url = f"amqp://{quote(user)}:{quote(password)}@{plain.host}:{plain.port}/{quote(vhost.name, safe='')}"
    return Address.parse(url, management_url=plain.management)


@pytest.fixture
def somebody(broker: SharedBroker, vhost: Vhost) -> Iterator[Address]:
    """A user who may read the management API and nothing else yet."""
    name = f"user-{vhost.name}"
    broker.api(f"users/{name}", method="PUT", body={"password": "pw", "tags": "management"})
    allow(vhost, name, "^$", "^$", "^$")
    yield login(vhost, name, "pw")
    broker.api(f"users/{name}", method="DELETE")


def allow(vhost: Vhost, user: str, configure: str, write: str, read: str) -> None:
    rights = {"configure": configure, "write": write, "read": read}
    vhost.api(f"permissions/{{vhost}}/{user}", method="PUT", body=rights)


def test_a_user_who_may_not_declare_is_told_which_right_and_how_to_get_it(vhost: Vhost, somebody: Address) -> None:
    with pytest.raises(BrokerError) as refused:
        apply(small_topology(), somebody)

    said = str(refused.value)
    assert f"User {somebody.user!r} lacks" in said
    assert "`configure`" in said
    assert "on exchange 'retry.unroutable'" in said
    assert (
        f"rabbitmqctl set_permissions -p {vhost.name} {somebody.user} '^(retry\\..*|manual\\-review\\.pending)$'"
        in said
    )


def test_what_a_user_may_not_see_is_stated_and_not_taken_for_good(vhost: Vhost, somebody: Address) -> None:
    TopologyInstallation(vhost).apply()
    allow(vhost, somebody.user, ".*", ".*", ".*")

    found = verify(small_topology(), somebody)

    assert [finding.level for finding in found] == ["note"] * len(found)
    if vhost.version.startswith("3.10"):
        assert [finding.things for finding in found] == [("feature flags",)]


def test_a_user_without_a_tag_is_told_so(broker: SharedBroker, vhost: Vhost, somebody: Address) -> None:
    broker.api(f"users/{somebody.user}", method="PUT", body={"password": "pw", "tags": ""})

    with pytest.raises(BrokerError, match="rabbitmqctl set_user_tags"):
        apply(small_topology(), somebody)


@pytest.fixture
def people(broker: SharedBroker, vhost: Vhost) -> Iterator[tuple[Address, Address]]:
    """The deploy user and the router user, imported from a definitions file."""
    topology = small_topology(destinations=["orders*"])
    names = [f"deploy-{vhost.name}", f"router-{vhost.name}"]
    users = (deploy_user(topology, "one", names[0]), router_user(topology, "two", names[1]))
    broker.api("definitions", method="POST", body=definitions(topology, vhost.name, users))
    yield login(vhost, names[0], "one"), login(vhost, names[1], "two")
    for name in names:
        broker.api(f"users/{name}", method="DELETE")


def test_the_deploy_user_of_the_export_can_apply_and_verify(people: tuple[Address, Address]) -> None:
    deploy, _ = people
    other = small_topology(destinations=["orders*"], policy=[{"name": "a", "schedule": ["3s"], "max_retries": 1}])

    assert apply(other, deploy).declared == 2
    assert [finding for finding in verify(other, deploy) if finding.level == "wrong"] == []
    assert command(deploy, "apply").exit_code == 0


def test_the_exported_router_user_can_do_its_work_and_configure_nothing(
    vhost: Vhost, people: tuple[Address, Address]
) -> None:
    _, router = people
    installation = TopologyInstallation(vhost, small_topology(destinations=["orders*"]))
    with installation.open_channel() as opened:
        opened.queue_declare("orders", durable=True)
        opened.queue_declare("payments", durable=True)
    as_router = TopologyInstallation(
        Vhost(vhost.name, router.url, vhost.management_url, vhost.version), installation.topology
    )

    with as_router.open_channel() as opened:
        declare(opened, Blueprint((), (), (way_home(installation.names, Destination("queue", "orders")),)))
        as_router.schedule(opened, "orders", 125, b"back")
        opened.queue_bind("retry.cancelled", "retry.gate.cancelled", "~id:1:1")
        assert [one.body for one in drained(opened, "retry.audit", 1, deadline=30)] == [b"back"]
    with pytest.raises(BrokerError, match="lacks"), as_router.open_channel() as opened:
        opened.queue_declare("retry.mine", durable=True)
    with pytest.raises(BrokerError, match="lacks"), as_router.open_channel() as opened:
        opened.queue_bind("payments", "retry.deliver", "~to:payments")


def test_a_vhost_whose_name_needs_escaping(broker: SharedBroker) -> None:
    name = "a/b c%"
    path = quote(name, safe="")
    broker.api(f"vhosts/{path}", method="PUT", body={})
    try:
        plain = Address.parse(broker.amqp_url, management_url=broker.management_url)
        broker.api(
            f"permissions/{path}/{plain.user}", method="PUT", body={"configure": ".*", "write": ".*", "read": ".*"}
        )
        url = f"amqp://{plain.user}:{plain.password}@{plain.host}:{plain.port}/{path}"
        address = Address.parse(url, management_url=plain.management)

        assert command(address, "apply").exit_code == 0
        assert command(address, "verify").exit_code == 0
    finally:
        broker.api(f"vhosts/{path}", method="DELETE")


def test_a_vhost_that_is_not_there_is_named_with_the_command_that_makes_it(vhost: Vhost) -> None:
    missing = Address.parse(f"{vhost.amqp_url}-none", management_url=vhost.management_url)

    answer = command(missing, "apply")

    assert answer.exit_code == 1
    assert f"rabbitmqctl add_vhost {vhost.name}-none" in answer.stderr


def test_a_login_that_is_refused_says_what_to_check(vhost: Vhost, somebody: Address) -> None:
    with pytest.raises(BrokerError, match="check user and password"):
        connect(login(vhost, somebody.user, "wrong"), "test")
    with pytest.raises(BrokerError, match=f"There is no vhost '{vhost.name}-none'"):
        connect(Address.parse(f"{vhost.amqp_url}-none"), "test")
    vhost.api(f"permissions/{{vhost}}/{somebody.user}", method="DELETE")
    with pytest.raises(BrokerError, match="has no rights in vhost"):
        connect(somebody, "test")


def test_a_node_that_boots_with_the_definitions_verifies_over_tls(series: str | None, tmp_path: Path) -> None:
    """A broker that is given definitions at boot makes no user of its own, so the file must bring them."""
    topology = small_topology()
    everything = Rights(".*", ".*", ".*")
    guest = BrokerUser("guest", hashed("guest"), ("administrator",), everything)
    data = tmp_path / "node"
    data.mkdir()
    (data / "definitions.json").write_text(definitions_text(topology, users=(guest,)), "utf-8")
    make_certificate(data)
    amqps, https = ports.free(2)

    with closing(embedded.obtain(series).broker(data_dir=data, extra_config=tls(data, amqps, https))) as node:
        node.start()
        address = Address.parse(
            f"amqps://guest:guest@localhost:{amqps}/",
            management_url=f"https://localhost:{https}",
            ca_file=str(data / "cert.pem"),
        )
        assert verify(topology, address) == []
        assert apply(topology, address).declared == 0
        assert command(address, "apply").exit_code == 0

        untrusted = Address.parse(address.url.partition("?")[0], management_url=address.management)
        with pytest.raises(BrokerError, match=r"is not trusted: self.signed certificate"):
            apply(topology, untrusted)


def tls(data: Path, amqps: int, https: int) -> list[str]:
    files = {"cacertfile": "cert.pem", "certfile": "cert.pem", "keyfile": "key.pem"}
    return [
        f"load_definitions = {data}/definitions.json",
        f"listeners.ssl.default = 127.0.0.1:{amqps}",
        "ssl_options.verify = verify_none",
        f"management.ssl.port = {https}",
        "management.ssl.ip = 127.0.0.1",
        *(
            f"{section}.{key} = {data}/{file}"
            for section in ("ssl_options", "management.ssl")
            for key, file in files.items()
        ),
    ]


def make_certificate(folder: Path) -> None:
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files],
        check=True,
        capture_output=True,
    )
    for file in folder.iterdir():
        file.chmod(0o644)
