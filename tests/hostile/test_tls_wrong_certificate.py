"""A broker that cannot prove who it is gets no password: the router says so in a line, and does not start."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tarry.amqp.declare import connect
from tarry.amqp.management import Management
from tarry.amqp.url import Address
from tarry.errors import BrokerError, BrokerUnreachableError, SettingsError
from tests.hostile.tls_server import Certificates, showing
from tests.support.cli import run_process
from tests.support.installation import Installation
from tests.support.router import Router
from tests.support.spaces import SharedBroker

WRONG = [
    ("stranger", "self-signed certificate"),
    ("elsewhere", "certificate is not valid for|IP address mismatch|Hostname mismatch"),
    ("expired", "certificate has expired"),
]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def amqps(installation: Installation, port: int, query: str = "", host: str = "localhost") -> str:
    login, _, rest = installation.amqp_url.removeprefix("amqp://").partition("@")
    return f"amqps://{login}@{host}:{port}/{rest.partition('/')[2]}{query}"


@pytest.mark.parametrize(("name", "reason"), WRONG)
def test_the_router_refuses_it_in_one_clear_line(
    installation: Installation, certificates: Certificates, name: str, reason: str
) -> None:
    with showing(certificates, name, installation.amqp_url) as port:
        given = {"RABBITMQ_URL": amqps(installation, port), "RABBITMQ_CA_FILE": certificates.pem("ca")}
        done = serve(installation, given)
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: amqps://guest:***@localhost:")
    assert "is not trusted" in last
    assert any(words in last for words in reason.split("|")), last
    assert "RABBITMQ_CA_FILE" in last
    assert "Traceback" not in done.stderr


def test_an_authority_that_nobody_named_is_not_trusted(installation: Installation, certificates: Certificates) -> None:
    with showing(certificates, "good", installation.amqp_url) as port:
        done = serve(installation, {"RABBITMQ_URL": amqps(installation, port)})
    assert done.returncode == 1
    assert "is not trusted: unable to get local issuer certificate" in done.stderr


@pytest.mark.parametrize(("name", "reason"), WRONG)
def test_the_management_api_is_held_to_the_same(
    broker: SharedBroker, certificates: Certificates, name: str, reason: str
) -> None:
    with showing(certificates, name, broker.management_url) as port:
        url = f"https://localhost:{port}"
        address = Address.parse(broker.amqp_url, management_url=url, ca_file=certificates.pem("ca"))
        with pytest.raises(BrokerError, match="is not trusted") as refused:
            Management(address).overview()
    assert not isinstance(refused.value, BrokerUnreachableError)
    assert any(words.lower() in str(refused.value).lower() for words in reason.split("|")), refused.value


@pytest.mark.parametrize("way", ["setting", "address"])
def test_with_the_right_authority_it_works_end_to_end(
    installation: Installation, certificates: Certificates, start: Callable[..., Router], way: str
) -> None:
    """Retries move over amqps, and the topology is checked over https."""
    ca = certificates.pem("ca")
    query = f"?cacertfile={ca}" if way == "address" else ""
    given = {} if way == "address" else {"RABBITMQ_CA_FILE": ca}
    with (
        showing(certificates, "good", installation.amqp_url) as amqp_port,
        showing(certificates, "good", installation.management_url) as web_port,
    ):
        login = installation.management_url.removeprefix("http://").partition("@")[0]
        web = f"https://{login}@localhost:{web_port}{query}"
        router = start(
            RABBITMQ_URL=amqps(installation, amqp_port, query), RABBITMQ_MANAGEMENT_URL=web, **given
        ).wait_ready()
        queue = installation.declare("quick.orders")
        installation.request(queue, "m1")
        assert installation.take_ids(queue, 1) == ["m1"]
        assert router.logged("checked only in part") == []
        router.stop()


def test_a_broker_that_asks_for_our_certificate_gets_it(installation: Installation, certificates: Certificates) -> None:
    ca = f"cacertfile={certificates.pem('ca')}"
    ours = f"certfile={certificates.pem('client')}&keyfile={certificates.key('client')}"
    with (
        showing(certificates, "good", installation.amqp_url, asks=True) as amqp_port,
        showing(certificates, "good", installation.management_url, asks=True) as web_port,
    ):
        login = installation.management_url.removeprefix("http://").partition("@")[0]
        web = f"https://{login}@localhost:{web_port}"
        known = Address.parse(amqps(installation, amqp_port, f"?{ca}&{ours}"), management_url=web)
        connect(known, "test").close()
        assert Management(known).overview()["rabbitmq_version"]
        assert Address.parse(known.url, management_url=known.management_with_login) == known
        nobody = Address.parse(amqps(installation, amqp_port, f"?{ca}"), management_url=web)
        with pytest.raises(BrokerError):
            connect(nobody, "test")
        with pytest.raises(BrokerError):
            Management(nobody).overview()


def test_files_that_are_none_are_named(tmp_path: Path, certificates: Certificates) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nothing")
    for query, file in (
        ("cacertfile=/nowhere.pem", "/nowhere.pem: no certificate authority"),
        (f"cacertfile={nonsense}", "nonsense.pem: no certificate authority"),
        (f"certfile={nonsense}", "nonsense.pem: no certificate with its key"),
        (f"certfile={certificates.pem('client')}", "client.pem: no certificate with its key"),
    ):
        with pytest.raises(SettingsError, match=file):
            connect(Address.parse(f"amqps://localhost:1/?{query}"), "test")
    web = Address.parse("amqp://localhost", management_url="https://localhost:1?cacertfile=/nowhere.pem")
    with pytest.raises(SettingsError, match=r"/nowhere\.pem"):
        Management(web).overview()


def test_a_certificate_is_checked_whatever_the_address_says(
    installation: Installation, certificates: Certificates
) -> None:
    """Other clients may be told to trust anybody; tarry sends no password to a server that it does not trust."""
    with (
        showing(certificates, "stranger", installation.amqp_url) as port,
        pytest.raises(BrokerError, match="is not trusted"),
    ):
        connect(Address.parse(amqps(installation, port, "?verify=verify_none")), "test")
    context = Address.parse("amqps://localhost/").tls.context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def serve(installation: Installation, given: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return run_process(["serve"], installation.environment | given)
