"""`tarry demo` and `tarry up` in a shell in which the addresses of a real installation are exported."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pika
import psycopg
import pytest

from tests.acceptance.audit_world import World, ask_all
from tests.acceptance.up_command import TARRY, plain_environment, up
from tests.harness.amqp import open_connection
from tests.harness.spaces import Database, Vhost
from tests.harness.waiting import wait_for


@pytest.fixture
def exported(vhost: Vhost, database: Database) -> Mapping[str, str]:
    """What the README asks people to export, and what else may point at an installation of theirs."""
    return {
        "RABBITMQ_URL": vhost.amqp_url,
        "RABBITMQ_MANAGEMENT_URL": vhost.management_url,
        "RABBITMQ_CA_FILE": "/nowhere/ca.pem",
        "DATABASE_URL": database.dsn,
        "PGSSLMODE": "require",
        "PGHOSTADDR": "192.0.2.1",
        "HTTP_HOST": "192.0.2.1",
        "RETRY_QUEUE": "shop.requests",
    }


def objects_on(vhost: Vhost) -> list[str]:
    """Every queue, policy and exchange that is not the broker's own."""
    queues, policies = vhost.api("queues/{vhost}"), vhost.api("policies/{vhost}")
    exchanges = [one for one in vhost.api("exchanges/{vhost}") if one["name"] and not one["name"].startswith("amq.")]
    return [one["name"] for one in [*queues, *policies, *exchanges]]


def run(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*TARRY, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment, check=False)


def at(vhost: Vhost) -> list[str]:
    """The options that ask for this broker."""
    return ["--url", vhost.amqp_url, "--management-url", vhost.management_url]


def test_demo_leaves_the_exported_broker_alone(
    vhost: Vhost, series: str | None, exported: Mapping[str, str], tmp_path: Path
) -> None:
    done = run(plain_environment() | dict(exported), "demo", *(["--series", series] if series else []))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost 0" in done.stdout
    assert objects_on(vhost) == []
    assert (
        "Set and not used here: DATABASE_URL, HTTP_HOST, PGHOSTADDR, PGSSLMODE, RABBITMQ_CA_FILE, RABBITMQ_"
        in done.stdout
    )


def test_up_leaves_the_exported_broker_and_database_alone(
    vhost: Vhost, database: Database, series: str | None, exported: Mapping[str, str], open_folder: Path
) -> None:
    with up(open_folder, series, environment=exported) as made:
        assert objects_on(vhost) == []
        assert made.exports["RABBITMQ_URL"] != vhost.amqp_url
        with pika.BlockingConnection(pika.URLParameters(made.exports["RABBITMQ_URL"])) as connection:
            connection.channel().queue_declare("shop.requests", passive=True)
        psycopg.connect(made.exports["DATABASE_URL"]).close()
        assert made.exports["DATABASE_URL"] != database.dsn


def test_demo_uses_the_broker_that_the_url_option_names(vhost: Vhost) -> None:
    done = run(plain_environment(), "demo", *at(vhost))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost 0" in done.stdout
    assert {"demo.invoices", "retry.scheduled"} <= set(objects_on(vhost))
    assert "stay on that broker" in done.stdout


@pytest.mark.parametrize("command", ["demo", "up"])
def test_url_option_refuses_a_broker_with_another_router(
    command: str, vhost: Vhost, world: World, open_folder: Path
) -> None:
    world.start()
    assert world.command("intake", "pause")[0] == 0
    with open_connection(vhost.amqp_url) as connection:
        channel = connection.channel()
        paused = lambda: not channel.queue_declare("retry.scheduled", passive=True).method.consumer_count  # noqa: E731
        wait_for(paused, what="the router to stop taking requests")
    before = objects_on(vhost)
    folder = ["--data-dir", str(open_folder / "up")] if command == "up" else []
    done = run(plain_environment(), command, *at(vhost), *folder)
    assert done.returncode == 5
    assert "Another router consumes from retry.audit, retry.cancelled, retry.unroutable at amqp://" in done.stderr
    assert "leave out --url" in done.stderr
    assert "guest:guest" not in done.stderr
    assert objects_on(vhost) == before
    assert list(open_folder.iterdir()) == []


def test_url_option_refuses_to_record_waiting_messages_elsewhere(vhost: Vhost, world: World, open_folder: Path) -> None:
    ask_all(world, world.declare("orders"), ["m1"])
    done = run(plain_environment(), "up", *at(vhost), "--data-dir", str(open_folder / "up"))
    assert done.returncode == 5
    assert "Messages wait in retry.scheduled at amqp://" in done.stderr
    assert world.depth("retry.scheduled") == 1


def test_url_option_refuses_a_broker_of_another_series(vhost: Vhost) -> None:
    done = run(plain_environment(), "demo", *at(vhost), "--series", "9.9")
    assert done.returncode == 2
    assert f"is RabbitMQ {vhost.version}, not 9.9" in done.stderr
    assert objects_on(vhost) == []
