"""A service that is killed in the middle of a delivery: another one delivers the event. Both have the rights that
`tarry topology export --users` grants, and no others.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tarry.events.cloudevent import Event
from tarry.topology.rights import router_rights
from tests.support.events import WITH_EVENTS
from tests.support.installation import Installation
from tests.support.receiver import SECRET, Receiver, properties_of, receiving, status
from tests.support.router import Router
from tests.support.spaces import Database, SharedBroker, Vhost
from tests.support.waiting import wait_for

HOOK = """
[[webhook]]
name = "one"
url = "http://127.0.0.1:{port}/one"
events = ["exhausted"]
secret_env = "HOOK_SECRET"
timeout = "60s"
allow_private = true
"""


POLICY = """
[[policy]]
name = "webhooks"
match = { queue = "tarry-webhooks.*" }
schedule = ["300ms"]
max_retries = 200
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def installation(vhost: Vhost, database: Database, tmp_path: Path, receiver: Receiver) -> Iterator[Installation]:
    policies = 'destinations = ["orders*"]\n' + POLICY + WITH_EVENTS + HOOK.format(port=receiver.port)
    made = Installation(vhost.amqp_url, vhost.management_url, database.dsn, tmp_path / "topology", policies)
    with contextlib.closing(made):
        yield made.apply()


@pytest.fixture
def settings(broker: SharedBroker, installation: Installation) -> Iterator[dict[str, str]]:
    """With the router's own user."""
    name, rights = f"router-{installation.address.vhost}", asdict(router_rights(installation.topology))
    broker.api(f"users/{name}", method="PUT", body={"password": "pw", "tags": "management"})
    installation.api(f"permissions/{{vhost}}/{name}", method="PUT", body=rights)
    url = f"amqp://{name}:pw@{installation.amqp_url.rpartition('@')[2]}"
    yield {"RABBITMQ_URL": url, "HOOK_SECRET": SECRET}
    broker.api(f"users/{name}", method="DELETE")


def publish(installation: Installation, event_id: str) -> None:
    data = {"queue": "orders", "policy": "default"}
    event = Event(event_id, "tarry.retry.exhausted", "/tarry/x", "a", datetime.now(UTC), "1", "in_review", data)
    body = json.dumps(event.data).encode()
    installation.channel.basic_publish("retry.events", event.key, body, properties_of(event), mandatory=True)


def test_another_service_delivers_what_one_was_killed_with(
    installation: Installation, start: Callable[..., Router], receiver: Receiver, settings: dict[str, str]
) -> None:
    ended = threading.Event()

    def held(handler: Any) -> None:
        ended.wait(60)
        status(204)(handler)

    receiver.answers["/one"] = held
    first = start(**settings).wait_ready()
    publish(installation, "a/1")
    wait_for(lambda: receiver.ids("/one") == ["a/1"], deadline=60, what="the first service to deliver")
    second = start(**settings).wait_ready()
    try:
        first.kill()
        receiver.answers.pop("/one")
        wait_for(lambda: receiver.ids("/one") == ["a/1"] * 2, deadline=60, what="the second service to deliver")
        wait_for(
            lambda: second.metric("tarry_webhook_deliveries_total", outcome="delivered") == 1,
            deadline=120,
            what="the delivery",
        )
    finally:
        ended.set()
    receiver.answers["/one"] = status(500)
    publish(installation, "a/2")
    wait_for(lambda: "a/2" in receiver.ids("/one"), deadline=60, what="the next event")
    receiver.answers.pop("/one")
    succeeded = "select state, error_reason from retry where message_id = 'a/2'"
    wait_for(lambda: installation.rows(succeeded) == [("succeeded", "answered 500")], deadline=60, what="its success")
