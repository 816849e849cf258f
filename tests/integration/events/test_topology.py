"""The exchange and the stream on a real broker: apply, plan, verify, definitions and rights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest

from tarry.amqp.url import Address
from tarry.topology.apply import apply
from tarry.topology.definitions import definitions, router_user
from tarry.topology.verify import verify
from tests.integration.topology.installation import small_topology
from tests.support.events import STREAM, StreamReader, reading_stream
from tests.support.installation import Installation
from tests.support.router import Router
from tests.support.spaces import SharedBroker, Vhost
from tests.support.waiting import wait_for

ON = {"enabled": True}


def findings(installation: Installation) -> list[str]:
    return [str(one) for one in verify(installation.topology, installation.address) if one.level == "wrong"]


def test_apply_declares_them_once_and_verify_finds_them_as_they_should_be(installation: Installation) -> None:
    assert apply(installation.topology, installation.address).declared == 0
    assert findings(installation) == []
    stream = next(one for one in installation.api("queues/{vhost}") if one["name"] == "retry.events.stream")
    assert (stream["type"], stream["arguments"]["x-max-age"]) == ("stream", "604800s")

    installation.channel.queue_declare("alerts", durable=True)
    installation.channel.queue_bind("alerts", "retry.events", "exhausted.#")
    assert findings(installation) == []

    installation.channel.queue_delete("retry.events.stream")
    assert any("queue retry.events.stream: is missing" in line for line in findings(installation))
    assert apply(installation.topology, installation.address).declared == 2


def test_a_changed_retention_is_a_difference(installation: Installation) -> None:
    text = (installation.folder / "tarry.toml").read_text(encoding="utf-8")
    installation.write_policies(f'{text}max_age = "1d"\n')
    (line,) = findings(installation)
    assert "x-max-age is 604800s, should be 86400s. Fix: delete the stream" in line


@pytest.fixture
def router_login(broker: SharedBroker, vhost: Vhost, installation: Installation) -> Iterator[str]:
    """The URL of the exported router user, imported with the definitions."""
    name = f"router-{vhost.name}"
    user = router_user(installation.topology, "two", name)
    broker.api("definitions", method="POST", body=definitions(installation.topology, vhost.name, (user,)))
    plain = Address.parse(vhost.amqp_url)
    yield f"amqp://{quote(name)}:two@{plain.host}:{plain.port}/{quote(vhost.name, safe='')}"
    broker.api(f"users/{name}", method="DELETE")


def test_the_exported_router_user_publishes_events(
    installation: Installation, start: Callable[..., Router], reader: StreamReader, router_login: str
) -> None:
    start(RABBITMQ_URL=router_login).wait_ready()
    wait_for(lambda: installation.rows("select from event_position"), deadline=120, what="a position")
    installation.request(installation.declare("quick.a"), "m1")
    wait_for(lambda: reader.words("m1") == ["scheduled", "returned"], deadline=120, what="the events")


@pytest.mark.one_series
def test_a_service_whose_exchange_was_deleted_publishes_once_it_is_back(
    installation: Installation, start: Callable[..., Router]
) -> None:
    router = start().wait_ready()
    wait_for(lambda: installation.rows("select from event_position"), deadline=120, what="a position")
    installation.channel.exchange_delete("retry.events")
    installation.request(installation.declare("quick.a"), "m1")
    warning = router.wait_logged("background task failed, trying again")
    assert "no exchange 'retry.events'" in warning["reason"]
    apply(installation.topology, installation.address)
    wait_for(lambda: installation.number("select published from event_position") >= 2, deadline=120, what="the events")


@pytest.mark.one_series
def test_no_event_misses_the_stream_while_only_another_queue_takes_them(
    installation: Installation, start: Callable[..., Router]
) -> None:
    installation.channel.queue_bind(installation.declare("alerts"), "retry.events", "#")
    router = start().wait_ready()
    wait_for(lambda: installation.rows("select from event_position"), deadline=120, what="a position")
    installation.channel.queue_delete(STREAM)
    installation.request(installation.declare("quick.a"), "m1")
    assert f"there is no {STREAM}" in router.wait_logged("background task failed, trying again")["reason"]
    wait_for(lambda: router.metric("tarry_events_lag_seconds") > 0, deadline=120, what="the lag in the metrics")
    apply(installation.topology, installation.address)
    with reading_stream(installation.amqp_url) as reader:
        wait_for(lambda: reader.words("m1") == ["scheduled", "returned"], deadline=120, what="the events")


def test_events_are_off_unless_they_are_enabled(vhost: Vhost) -> None:
    address = Address.parse(vhost.amqp_url, management_url=vhost.management_url)
    apply(small_topology(), address)
    assert not [one for one in vhost.api("queues/{vhost}") if "events" in one["name"]]
    apply(small_topology(events=ON), address)
    assert [one for one in vhost.api("queues/{vhost}") if "events" in one["name"]]


@pytest.mark.one_series
def test_a_full_queue_that_rejects_holds_events_up_and_loses_none(
    installation: Installation, start: Callable[..., Router]
) -> None:
    full = installation.declare("alerts", "classic", x_max_length=1, x_overflow="reject-publish")
    installation.channel.queue_bind(full, "retry.events", "#")
    installation.channel.basic_publish("", full, b"x")
    router = start().wait_ready()
    wait_for(lambda: installation.rows("select from event_position"), deadline=120, what="a position")
    installation.request(installation.declare("quick.a"), "m1")
    assert "a queue that is bound to retry.events is full" in router.wait_logged("background task failed")["reason"]
    assert installation.number("select published from event_position") == 0
    installation.channel.queue_delete(full)
    wait_for(lambda: installation.number("select published from event_position") >= 2, deadline=120, what="the events")
