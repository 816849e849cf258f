from __future__ import annotations

import pytest

from tarry.amqp.url import Address
from tarry.errors import SettingsError


def test_a_plain_address_has_the_usual_ports_and_the_first_vhost() -> None:
    address = Address.parse("amqp://rabbit.example")

    assert (address.port, address.user, address.vhost) == (5672, "guest", "/")
    assert address.management == "http://rabbit.example:15672"


def test_a_vhost_and_a_password_that_need_escaping_come_through_both_ways() -> None:
    address = Address.parse("amqp://us%40er:p%2Fw%40@host:5673/a%2Fb%20c%25")

    assert (address.user, address.password, address.vhost) == ("us@er", "p/w@", "a/b c%")
    assert Address.parse(address.url) == address


def test_tls_changes_both_ports() -> None:
    address = Address.parse("amqps://host/")

    assert (address.port, address.management) == (5671, "https://host:15671")
    assert address.parameters("test").ssl_options is not None


def test_the_management_api_can_be_elsewhere_with_a_login_of_its_own() -> None:
    address = Address.parse("amqp://a:b@host/", management_url="https://c:d@other:8443")

    assert address.management == "https://other:8443"
    assert (address.management_user, address.management_password) == ("c", "d")


def test_a_version_six_address_keeps_its_brackets() -> None:
    assert Address.parse("amqp://[::1]:5672/").management == "http://[::1]:15672"


def test_a_password_is_never_shown() -> None:
    address = Address.parse("amqp://user:s3cret@host/")

    assert "s3cret" not in f"{address} {address!r}"


@pytest.mark.parametrize("url", ["", "host:5672", "http://host", "amqp://", "redis://user:s3cret@host"])
def test_what_is_no_address_is_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(SettingsError, match="write amqp://") as refused:
        Address.parse(url)
    assert "s3cret" not in str(refused.value)


def test_a_management_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(SettingsError, match="write http://"):
        Address.parse("amqp://host", management_url="host:15672")


def test_the_heartbeat_can_be_said_in_the_address_and_is_kept() -> None:
    address = Address.parse("amqp://host/?connection_attempts=3&heartbeat=5")

    assert address.parameters("test").heartbeat == 5
    assert Address.parse(address.url) == address
    assert Address.parse("amqp://host/").parameters("test").heartbeat == 15


@pytest.mark.parametrize("given", ["", "0", "soon", "-5", "601", "1.5"])
def test_a_heartbeat_that_is_no_number_of_seconds_is_refused(given: str) -> None:
    with pytest.raises(SettingsError, match=r"from 1 to 600: write amqp://.*heartbeat=15"):
        Address.parse(f"amqp://host/?heartbeat={given}")
