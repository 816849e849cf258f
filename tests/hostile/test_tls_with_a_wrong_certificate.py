"""A broker that cannot prove who it is gets no password: the router says so in a line, and does not start."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tarry.broker.address import Address
from tarry.broker.declare import connect
from tarry.broker.management import Management
from tarry.errors import BrokerError, BrokerUnreachableError, SettingsError
from tests.hostile.tls_world import Certificates, showing
from tests.integration.router.serving import Place, Router

WRONG = [
    ("stranger", "self-signed certificate"),
    ("elsewhere", "certificate is not valid for|IP address mismatch|Hostname mismatch"),
    ("expired", "certificate has expired"),
]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def amqps(place: Place, port: int, query: str = "", host: str = "localhost") -> str:
    login, _, rest = place.amqp_url.removeprefix("amqp://").partition("@")
    return f"amqps://{login}@{host}:{port}/{rest.partition('/')[2]}{query}"


@pytest.mark.parametrize(("name", "reason"), WRONG)
def test_the_router_refuses_it_in_one_clear_line(
    place: Place, certificates: Certificates, name: str, reason: str
) -> None:
    with showing(certificates, name, place.amqp_url) as port:
        given = {"RABBITMQ_URL": amqps(place, port), "RABBITMQ_CA_FILE": certificates.pem("ca")}
        done = serve(place, given)
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: amqps://guest:***@localhost:")
    assert "is not trusted" in last
    assert any(words in last for words in reason.split("|")), last
    assert "RABBITMQ_CA_FILE" in last
    assert "Traceback" not in done.stderr


def test_an_authority_that_nobody_named_is_not_trusted(place: Place, certificates: Certificates) -> None:
    with showing(certificates, "good", place.amqp_url) as port:
        done = serve(place, {"RABBITMQ_URL": amqps(place, port)})
    assert done.returncode == 1
    assert "is not trusted: unable to get local issuer certificate" in done.stderr


@pytest.mark.parametrize(("name", "reason"), WRONG)
def test_the_management_api_is_held_to_the_same(
    place: Place, certificates: Certificates, name: str, reason: str
) -> None:
    with showing(certificates, name, place.management_url) as port:
        url = f"https://localhost:{port}"
        address = Address.parse(place.amqp_url, management_url=url, ca_file=certificates.pem("ca"))
        with pytest.raises(BrokerError, match="is not trusted") as refused:
            Management(address).overview()
    assert not isinstance(refused.value, BrokerUnreachableError)
    assert any(words.lower() in str(refused.value).lower() for words in reason.split("|")), refused.value


@pytest.mark.parametrize("way", ["setting", "address"])
def test_with_the_right_authority_it_works_end_to_end(
    place: Place, certificates: Certificates, start: Callable[..., Router], way: str
) -> None:
    """Retries move over amqps, and the topology is checked over https."""
    ca = certificates.pem("ca")
    query = f"?cacertfile={ca}" if way == "address" else ""
    given = {} if way == "address" else {"RABBITMQ_CA_FILE": ca}
    with (
        showing(certificates, "good", place.amqp_url) as amqp_port,
        showing(certificates, "good", place.management_url) as web_port,
    ):
        login = place.management_url.removeprefix("http://").partition("@")[0]
        web = f"https://{login}@localhost:{web_port}{query}"
        router = start(RABBITMQ_URL=amqps(place, amqp_port, query), RABBITMQ_MANAGEMENT_URL=web, **given).wait_ready()
        queue = place.origin("quick.orders")
        place.request(queue, "m1")
        assert place.take(queue, 1) == ["m1"]
        assert router.said("checked only in part") == []
        router.stop()


def test_a_broker_that_asks_for_our_certificate_gets_it(place: Place, certificates: Certificates) -> None:
    ca = f"cacertfile={certificates.pem('ca')}"
    ours = f"certfile={certificates.pem('client')}&keyfile={certificates.key('client')}"
    with (
        showing(certificates, "good", place.amqp_url, asks=True) as amqp_port,
        showing(certificates, "good", place.management_url, asks=True) as web_port,
    ):
        login = place.management_url.removeprefix("http://").partition("@")[0]
        web = f"https://{login}@localhost:{web_port}"
        known = Address.parse(amqps(place, amqp_port, f"?{ca}&{ours}"), management_url=web)
        connect(known, "test").close()
        assert Management(known).overview()["rabbitmq_version"]
        assert Address.parse(known.url, management_url=known.management_with_login) == known
        nobody = Address.parse(amqps(place, amqp_port, f"?{ca}"), management_url=web)
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


def test_a_certificate_is_checked_whatever_the_address_says(place: Place, certificates: Certificates) -> None:
    """Other clients may be told to trust anybody; tarry hands a password to nobody that it does not know."""
    with (
        showing(certificates, "stranger", place.amqp_url) as port,
        pytest.raises(BrokerError, match="is not trusted"),
    ):
        connect(Address.parse(amqps(place, port, "?verify=verify_none")), "test")
    context = Address.parse("amqps://localhost/").tls.context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def serve(place: Place, given: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | place.environment | given
    command = [sys.executable, "-m", "tarry", "serve"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
