from __future__ import annotations

import contextlib

import pytest

from tests.support import services
from tests.support.services import MissingBrokerError, RunServices
from tests.support.spaces import Vhost


@pytest.fixture
def named(vhost: Vhost, monkeypatch: pytest.MonkeyPatch) -> Vhost:
    monkeypatch.setenv(services.GIVEN_URL, vhost.amqp_url)
    monkeypatch.setenv(services.GIVEN_MANAGEMENT_URL, vhost.management_url)
    return vhost


def test_run_services_take_the_broker_named_for_the_tests(named: Vhost) -> None:
    with contextlib.closing(RunServices()) as run:
        facts = run.broker(None)
        assert (facts.amqp_url, facts.version, facts.source) == (named.amqp_url, named.version, services.GIVEN_URL)
        with pytest.raises(MissingBrokerError, match="not on the broker of TARRY_TEST_RABBITMQ_URL"):
            run.ctl(None, ("stop",))


@pytest.mark.usefixtures("named")
def test_run_services_refuse_a_named_broker_of_another_series() -> None:
    with contextlib.closing(RunServices()) as run, pytest.raises(MissingBrokerError, match=r"not 9\.9"):
        run.broker("9.9")


def test_run_services_do_not_read_rabbitmq_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(services.GIVEN_URL, raising=False)
    monkeypatch.setenv("RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:1/")
    assert services.given_broker(None) is None
