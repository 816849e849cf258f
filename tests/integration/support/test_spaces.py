from __future__ import annotations

from typing import TYPE_CHECKING

import pika
import psycopg
import pytest

if TYPE_CHECKING:
    from tests.support.spaces import Database, SharedBroker, Vhost


@pytest.mark.parametrize("turn", [1, 2])
def test_a_vhost_is_fresh_every_time(vhost: Vhost, turn: int) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(vhost.amqp_url))
    channel = connection.channel()
    channel.queue_declare("mine", durable=True)
    channel.basic_publish("", "mine", f"turn {turn}".encode())
    method, _, body = channel.basic_get("mine", auto_ack=True)
    assert (method is not None, body) == (True, f"turn {turn}".encode())
    connection.close()
    assert [queue["name"] for queue in vhost.api("queues/{vhost}")] in ([], ["mine"])


@pytest.mark.parametrize("turn", [1, 2])
def test_a_database_is_fresh_every_time(database: Database, turn: int) -> None:
    with psycopg.connect(database.dsn) as connection:
        connection.execute("CREATE TABLE mine (turn int)")
        connection.execute("INSERT INTO mine VALUES (%s)", [turn])
        assert connection.execute("SELECT turn FROM mine").fetchall() == [(turn,)]


def test_the_shared_broker_is_of_the_wanted_series(broker: SharedBroker, series: str | None) -> None:
    assert broker.version.startswith(series or "")
    assert broker.ctl("eval", "1 + 1.").strip() == "2"
