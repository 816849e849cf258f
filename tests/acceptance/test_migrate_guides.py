"""The guides of docs/migrate.md, each from the old setup to a retry by tarry, with the page's own code.

Celery's is run by test_examples.py, the import from Postgres by test_import_postgres.py. The delayed-message plugin is
not part of RabbitMQ: what replaces it is tried here.
"""

from __future__ import annotations

import os
import re
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import psycopg
import pytest

from tests.acceptance.shipped import Arrival, ShippedService, serving_a_file
from tests.acceptance.up_command import running
from tests.support.cli import run_cli
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "migrate.md").read_text(encoding="utf-8")
QUORUM = {"x-queue-type": "quorum"}
WAIT_MS = 1_500


@pytest.fixture(scope="module")
def service(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShippedService]:
    """One service; each guide has queues of its own."""
    with serving_a_file(broker, services, tmp_path_factory.mktemp("service"), 0.02) as made:
        yield made


def guide(title: str) -> str:
    found = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert found, f"docs/migrate.md has no guide {title!r}"
    return found


def code(title: str) -> dict[str, Any]:
    """What the Python blocks of a guide define; its `handle` always fails."""

    def handle(_: bytes) -> None:
        raise ValueError("as always")

    found: dict[str, Any] = {"pika": pika, "uuid": uuid, "handle": handle}
    for block in re.findall(r"```python\n(.*?)```", guide(title), flags=re.DOTALL):
        exec(block, found)  # noqa: S102 - our own page
    return found


def commands(title: str) -> list[str]:
    """What a reader types, without the comments."""
    blocks = re.findall(r"```console\n(.*?)```", guide(title), flags=re.DOTALL)
    return [line.removeprefix("$ ").partition("  #")[0].strip() for block in blocks for line in block.splitlines()]


def attach(service: ShippedService, title: str, queue: str) -> None:
    """The command of the guide, for another queue; the probe has tests of its own."""
    (command,) = [line for line in commands(title) if line.startswith("tarry attach")]
    _, verb, _, *options = command.split()
    service.tarry(verb, queue, *options, "--no-probe")


def publish(service: ShippedService, exchange: str, key: str, message_id: str, **headers: Any) -> None:
    about = pika.BasicProperties(delivery_mode=2, message_id=message_id, headers=headers)
    service.channel.basic_publish(exchange, key, b"order", about, mandatory=True)


def assert_retried(service: ShippedService, queue: str, failed: Arrival) -> None:
    """It is rejected, as an attached consumer does, and comes back by tarry, once."""
    service.reject(failed)
    back = service.arrival(queue)
    back.assert_on_time()
    assert (back.body, back.properties.message_id) == (failed.body, failed.properties.message_id)
    assert (back.headers["tarry-count"], back.headers["tarry-queue"]) == (1, queue)
    service.ack(back)
    assert service.depth(queue) == 0


def test_guide_plugin_consumer_rejects_and_producer_delays(service: ShippedService) -> None:
    defined, queue = code("From the delayed-message plugin"), service.queue("plugin")
    began = time.time_ns() / 1e6
    defined["publish_later"](service.channel, queue, b"order", "later-1", WAIT_MS)
    first = service.arrival(queue)
    assert first.at_ms >= began + WAIT_MS
    assert (first.headers["tarry-count"], first.body) == (0, b"order")
    method = pika.spec.Basic.Deliver(delivery_tag=first.tag)
    defined["on_message"](service.channel, method, first.properties, first.body)
    second = service.arrival(queue)
    assert second.headers["tarry-count"] == 1
    service.ack(second)


@pytest.mark.parametrize("through", ["policy", "consumer"])
def test_guide_ttl_queues_drain_and_later_failures_go_to_tarry(service: ShippedService, through: str) -> None:
    queue, waiting = f"ttl.{through}", f"ttl.{through}.retry"
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue, "x-message-ttl": WAIT_MS}
    service.channel.queue_declare(queue, durable=True, arguments=QUORUM)
    service.channel.queue_declare(waiting, durable=True, arguments={**QUORUM, **back})
    publish(service, "", queue, "old-1")
    first = service.arrival(queue)
    if through == "policy":
        old = {"dead-letter-exchange": "", "dead-letter-routing-key": waiting}
        about = {"pattern": f"^{re.escape(queue)}$", "definition": old, "priority": 1, "apply-to": "queues"}
        service.installation.api(f"policies/{{vhost}}/{through}", method="PUT", body=about)
        service.reject(first)
        wait_for(lambda: service.depth(waiting) == 1, what="the message to wait in the old way")
    else:
        publish(service, "", waiting, "old-1")
        service.ack(first)
    attach(service, "From TTL queues of your own", queue)
    again = service.arrival(queue)
    assert "tarry-id" not in again.headers, "it came back in the old way"
    assert_retried(service, queue, again)
    assert service.depth(waiting) == 0


def test_guide_ttl_queue_with_an_argument_is_replaced(service: ShippedService) -> None:
    old, new, exchange = "ttl.argument", "ttl.argument.v2", "ttl.shop"
    own = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{old}.retry"}
    service.channel.queue_declare(old, durable=True, arguments={**QUORUM, **own})
    service.channel.exchange_declare(exchange, "topic", durable=True)
    service.channel.queue_bind(old, exchange, "order.#")
    publish(service, exchange, "order.1", "before")
    refused = run_cli(["attach", old, "--no-probe"], service.environment)
    assert (refused.exit_code, "overrides any policy" in refused.output) == (1, True), refused.output

    code("From TTL queues of your own")["move_bindings"](service.channel, old, new, [(exchange, "order.#")])
    attach(service, "From TTL queues of your own", new)
    publish(service, exchange, "order.2", "after")
    service.ack(service.arrival(old))
    assert service.depth(old) == 0
    assert_retried(service, new, service.arrival(new))


def test_guide_ladder_drains_and_later_failures_go_to_tarry(service: ShippedService) -> None:
    """Two levels of NServiceBus's and of Celery's ladder: topic exchanges, one bit each, and a delivery exchange."""
    queue, channel = service.queue("ladder"), service.channel
    for name in ("level-1", "level-0", "delivery"):
        channel.exchange_declare(f"ladder.{name}", "topic", durable=True)
    for name, after, ttl, taken, skipped in (
        ("level-1", "level-0", 1_000, "1.#", "0.#"),
        ("level-0", "delivery", 500, "*.1.#", "*.0.#"),
    ):
        arguments = {**QUORUM, "x-message-ttl": ttl, "x-dead-letter-exchange": f"ladder.{after}"}
        channel.queue_declare(f"ladder.{name}", durable=True, arguments=arguments)
        channel.queue_bind(f"ladder.{name}", f"ladder.{name}", taken)
        channel.exchange_bind(f"ladder.{after}", f"ladder.{name}", skipped)
    channel.queue_bind(queue, "ladder.delivery", f"#.{queue}")
    began = time.time_ns() / 1e6
    publish(service, "ladder.level-1", f"1.1.{queue}", "old-2")
    service.tarry("attach", queue, "--no-probe")
    arrival = service.arrival(queue)
    assert arrival.at_ms >= began + 1_500
    assert_retried(service, queue, arrival)


def test_guide_nservicebus_bridge_takes_the_error_queue_to_tarry(service: ShippedService, tmp_path: Path) -> None:
    queue, (command,) = service.queue("nsb.orders"), commands("From an NServiceBus ladder")
    service.channel.queue_declare("error", durable=True, arguments=QUORUM)
    bridge = [sys.executable, str(ROOT / command.split()[1]), *command.split()[2:]]
    failure = {
        "NServiceBus.FailedQ": queue,
        "NServiceBus.ExceptionInfo.ExceptionType": "System.TimeoutException",
        "NServiceBus.ExceptionInfo.Message": "the card service did not answer",
        "NServiceBus.EnclosedMessageTypes": "Shop.PlaceOrder",
    }
    with running(bridge, os.environ | service.environment, tmp_path) as process:
        publish(service, "", "error", "nsb-1", **failure)
        back = service.arrival(queue)
        assert process.process.poll() is None, process.text
    assert [name for name in back.headers if name.startswith("NServiceBus.")] == ["NServiceBus.EnclosedMessageTypes"]
    assert (back.headers["tarry-count"], back.properties.message_id) == (1, "nsb-1")
    with psycopg.connect(service.installation.dsn) as connection:
        found = connection.execute("select error_type, error_reason from retry where message_id = 'nsb-1'").fetchall()
    assert found == [("System.TimeoutException", "the card service did not answer")]
    service.ack(back)


@pytest.mark.parametrize("through", ["argument", "policy"])
def test_guide_delayed_retry_goes_on_beside_tarry(service: ShippedService, broker: SharedBroker, through: str) -> None:
    if not broker.version.startswith("4."):
        pytest.skip("RabbitMQ has delayed retry from 4.3")
    queue, delays = f"delayed.{through}", {"type": "all", "min": WAIT_MS, "max": WAIT_MS}
    arguments = {f"x-delayed-retry-{name}": value for name, value in delays.items()} if through == "argument" else {}
    service.channel.queue_declare(queue, durable=True, arguments={**QUORUM, **arguments})
    if through == "policy":
        definition = {f"delayed-retry-{name}": value for name, value in delays.items()}
        about = {"pattern": f"^{re.escape(queue)}$", "definition": definition, "priority": 1, "apply-to": "queues"}
        service.installation.api(f"policies/{{vhost}}/{queue}", method="PUT", body=about)
    publish(service, "", queue, "old-3")
    first = service.arrival(queue)
    service.channel.basic_reject(first.tag, requeue=True)
    rejected = time.time_ns() / 1e6
    attach(service, "From RabbitMQ 4.3's delayed retry", queue)
    again = service.arrival(queue)
    assert again.at_ms >= rejected + WAIT_MS - 100, "it was delivered before its delay was over"
    assert "tarry-id" not in again.headers
    assert_retried(service, queue, again)


def test_guide_importer_of_your_own_keeps_the_due_time_and_repeats_nothing(service: ShippedService) -> None:
    queue, move = service.queue("moved"), code("From a polling table in Postgres")["move"]
    due_ms = time.time_ns() // 1_000_000 + WAIT_MS
    row = {"key": "17", "queue": queue, "retries": 2, "due_ms": due_ms, "message_id": "row-17", "body": b"order"}
    for _ in range(2):
        move(service.channel, row)
    arrival = service.arrival(queue)
    assert arrival.at_ms >= due_ms
    assert (arrival.headers["tarry-count"], arrival.body) == (2, b"order")
    service.ack(arrival)
    twice = "select count(*) from transition join retry on retry.id = retry_id where message_id = %s"
    wait_for(
        lambda: service.installation.number(f"{twice} and transition.state = 'duplicate'", "row-17") == 1,
        what="the second request to be recognised",
    )
    assert service.depth(queue) == 0


def test_guide_s0_table_needs_no_mapping(service: ShippedService) -> None:
    (schema,) = re.findall(r"```sql\n(.*?)```", guide("From a polling table in Postgres"), flags=re.DOTALL)
    queue = service.queue("table")
    with psycopg.connect(service.installation.dsn) as connection:
        connection.execute(schema.encode())
        row = "insert into retry_queue (original_payload, original_queue, next_retry_at) values ('x', %s, now())"
        connection.execute(row, (queue,))
    environment = service.environment | {"TARRY_IMPORT_DSN": service.installation.dsn}
    lines = [line for line in commands("From a polling table in Postgres") if line.startswith("tarry import")]
    assert [("--dry-run" in line) for line in lines] == [True, False]
    for line in lines:
        words = re.findall(r'"[^"]*"|\S+', line.removeprefix("tarry "))
        done = run_cli([word.strip('"') for word in words], environment)
        assert (done.exit_code, "1 " in done.output) == (0, True), done.output
    arrival = service.arrival(queue)
    assert (arrival.body, arrival.headers["tarry-count"]) == (b"x", 1)
    service.ack(arrival)
