from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tarry import embedded
from tarry.embedded.given import Given, management_url_for
from tarry.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Callable

URL = "amqp://me:secret@127.0.0.1:5672/jobs"


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, fake_api: Callable[[int], int]) -> Given:
    monkeypatch.setenv("RABBITMQ_URL", URL)
    monkeypatch.setenv("RABBITMQ_MANAGEMENT_URL", f"http://me:secret@127.0.0.1:{fake_api(0)}")
    return Given()


def test_without_the_variable_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RABBITMQ_URL", raising=False)
    assert Given().look(None).sentence == "not set"


def test_it_is_taken_with_its_version(given: Given) -> None:
    assert given.look("4.3").sentence == "taking the one of RABBITMQ_URL, version 4.3.6"
    broker = given.take("4.3", print).broker()
    assert (broker.version, broker.amqp_url, broker.pid) == ("4.3.6", URL, None)


def test_another_series_is_refused(given: Given) -> None:
    assert given.look("3.10").sentence == "set, but that is version 4.3.6, not 3.10"


def test_one_without_a_management_api_is_refused_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RABBITMQ_URL", URL)
    monkeypatch.setenv("RABBITMQ_MANAGEMENT_URL", "http://127.0.0.1:1")
    assert "set RABBITMQ_MANAGEMENT_URL=" in Given().look(None).sentence


def test_it_is_first_in_line_and_goes_on_running(given: Given) -> None:
    said: list[str] = []
    with embedded.broker(announce=said.append) as broker:
        assert broker.source == "RABBITMQ_URL"
        assert broker.log_tail()
    assert said == ["RabbitMQ: taking the one of RABBITMQ_URL, version 4.3.6"]


def test_nobody_stops_or_configures_it(given: Given) -> None:
    supply = given.take(None, print)
    broker = supply.broker()
    for harm in (broker.stop, broker.kill, broker.restart, broker.pause, broker.unpause, lambda: broker.ctl("stop")):
        with pytest.raises(EmbeddedError, match="not ours"):
            harm()
    with pytest.raises(EmbeddedError, match="its own data"):
        supply.broker(data_dir="somewhere")


@pytest.mark.parametrize(
    ("amqp", "expected"),
    [
        ("amqp://a:b@host:5672/x", "http://a:b@host:15672"),
        ("amqps://a:b@host/x", "https://a:b@host:15671"),
        ("amqp://host", "http://guest:guest@host:15672"),
    ],
)
def test_its_management_api_is_on_the_usual_port(amqp: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RABBITMQ_MANAGEMENT_URL", raising=False)
    assert management_url_for(amqp) == expected
