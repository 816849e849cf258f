"""The deliverer of webhooks without a broker: settings that cannot be used, requests, retry requests and the rate."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import entry, walk
from tarry.amqp.properties import Properties
from tarry.core.names import Names
from tarry.core.signature import Secret
from tarry.events.cloudevent import Event
from tarry.events.webhooks import (
    Deliverer,
    WebhookDeliveries,
    WebhookError,
    _can_be_header,
    endpoint_of,
    retry_request,
    secret_of,
    signed,
)
from tarry.topology.webhooks import Webhook
from tests.support.receiver import OTHER_SECRET, SECRET
from tests.unit.topology import examples

HOOK = {"name": "billing", "url": "https://example.com/hook", "secret_env": "SECRET", "events": ["exhausted"]}
EVENT = Event("a/1", "tarry.retry.exhausted", "/tarry/x", "a", datetime.now(UTC), "1", "in_review", {"queue": "größe"})


def hook(**changes: Any) -> Webhook:
    return Webhook.model_validate(HOOK | changes)


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({}, "set URL to its URL"),
        ({"URL": "gopher://x"}, "URL is not a URL: write http://host/path"),
        ({"URL": "https://user:p@ss@example.com/secret-path"}, "URL is not a URL"),
    ],
)
def test_a_url_that_cannot_be_used_is_named_and_not_shown(environment: dict[str, str], problem: str) -> None:
    with pytest.raises(WebhookError, match=f"webhook billing: {problem}") as refused:
        endpoint_of(hook(url=None, url_env="URL"), environment, allow_private=False)
    assert "secret-path" not in str(refused.value)


def test_a_url_from_the_environment_is_not_shown_with_its_path() -> None:
    webhook = hook(url=None, url_env="URL")
    environment = {"URL": "https://user:pw@hooks.example.com/T0/B1/secret?token=1"}

    assert "secret" in endpoint_of(webhook, environment, allow_private=False).url
    assert "secret" not in repr(endpoint_of(webhook, environment, allow_private=False))
    assert webhook.place(environment) == "https://hooks.example.com/…"
    assert webhook.place({}) == "(URL is not set)"
    assert hook(url="https://user:pw@example.com/hook?token=1").place({}) == "https://example.com/hook"


@pytest.mark.parametrize("secret", ["", "hunter2", "whsec_c2hvcnQ="])
def test_a_secret_that_cannot_be_used_is_named_and_not_shown(secret: str) -> None:
    with pytest.raises(WebhookError, match="webhook billing: the secret in SECRET cannot be used") as refused:
        secret_of(hook(), {"SECRET": secret})
    assert not secret or secret not in str(refused.value)


def test_private_addresses_are_allowed_by_the_webhook_or_by_the_setting() -> None:
    assert not endpoint_of(hook(), {}, allow_private=False).allow_private
    assert endpoint_of(hook(), {}, allow_private=True).allow_private
    assert endpoint_of(hook(allow_private=True), {}, allow_private=False).allow_private


def test_a_payload_is_in_the_data() -> None:
    body, _ = signed(Secret.parse(SECRET), EVENT, b"\x00\xff")

    assert json.loads(body)["data"] == {"queue": "größe", "payload_base64": "AP8="}


def test_a_request_has_a_signature_for_each_secret() -> None:
    body, headers = signed(Secret.parse(f"{SECRET} {OTHER_SECRET}"), EVENT)

    assert headers["webhook-signature"].count("v1,") == 2
    assert Secret.parse(OTHER_SECRET).verify(headers, body, float(headers["webhook-timestamp"])) == "a/1"


def test_a_retry_request_keeps_the_event_and_what_tarry_wrote() -> None:
    own = entry("tarry-id", "5f0c") + entry("tarry-round", 3) + entry("cloudEvents:id", "a/1")
    stale = entry("error_reason", "an earlier one") + entry("x-delivery-count", 1)
    delivery = Delivery(b"{}", Properties(headers=own + stale, message_id=b"a/1"))
    made = retry_request(Names(), "tarry-webhooks.retry.billing", delivery, {"error_reason": "answered 500"})
    headers = {name.decode(): found.text() or found.integer() for name, found in walk(made.properties.headers or b"")}

    assert (made.exchange, made.body, made.properties.message_id) == ("retry.intake", b"{}", b"a/1")
    assert headers == {
        "tarry-id": "5f0c",
        "tarry-round": 3,
        "cloudEvents:id": "a/1",
        "original_queue": "tarry-webhooks.retry.billing",
        "original_exchange": None,
        "original_routing_key": "tarry-webhooks.retry.billing",
        "error_reason": "answered 500",
    }
    assert made.token == "5f0c:3"


@dataclass
class Clock:
    """Time that passes only while somebody sleeps."""

    now: float = 100.0
    starts: list[float] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


class Consumer:
    finishing = asyncio.Event()


def test_deliveries_keep_to_the_rate_and_do_not_save_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("tarry.events.webhooks.time.monotonic", clock.monotonic)
    monkeypatch.setattr("tarry.events.webhooks.asyncio.sleep", clock.sleep)
    unused: Any = None
    webhook = hook(rate=4)
    deliverer = Deliverer(webhook, unused, unused, unused, Names(), unused, unused, unused)

    async def deliver(times: int) -> None:
        for _ in range(times):
            await deliverer._turn(Consumer())  # type: ignore[arg-type]
            clock.starts.append(clock.now)

    asyncio.run(deliver(4))
    clock.now += 60
    asyncio.run(deliver(3))

    assert clock.starts == [100.0, 100.25, 100.5, 100.75, 160.75, 161.0, 161.25]


@pytest.mark.parametrize(("id_", "usable"), [("5f0c/17", True), ("a.1/17", False), ("größe", False), ("", False)])
def test_an_event_is_signed_only_if_its_id_has_one_meaning(id_: str, usable: bool) -> None:  # noqa: FBT001 - a table
    """Full stops separate the parts of what is signed."""
    assert _can_be_header(id_) == usable


def test_the_environment_of_the_deliveries_is_not_shown() -> None:
    unused: Any = None
    assert SECRET not in repr(WebhookDeliveries(unused, unused, unused, unused, environment={"SECRET": SECRET}))


def test_a_webhook_without_its_secret_is_a_trouble_and_not_started() -> None:
    topology = examples.topology(events={"enabled": True}, webhook=[HOOK])
    unused: Any = None
    deliveries = WebhookDeliveries(topology, unused, unused, unused, environment={})
    asyncio.run(deliveries._reconcile())

    (trouble,) = deliveries.troubles
    assert trouble.startswith("webhook billing: the secret in SECRET cannot be used: it is empty")
    assert trouble.endswith("its events wait")
