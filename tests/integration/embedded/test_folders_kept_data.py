from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pika
import psycopg
import pytest

from tarry import embedded
from tarry.errors import EmbeddedError, NoBrokerError
from tests.support.wanted import missing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def publish(url: str, body: bytes) -> None:
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("kept", durable=True, arguments={"x-queue-type": "quorum"})
        channel.basic_publish("", "kept", body, pika.BasicProperties(delivery_mode=2))


def take(url: str) -> bytes | None:
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        _, _, body = connection.channel().basic_get("kept", auto_ack=True)
        return body


def test_a_broker_keeps_its_messages_its_name_and_its_ports(series: str | None, tmp_path: Path) -> None:
    try:
        supply = embedded.obtain(series)
    except NoBrokerError as problem:
        missing(str(problem), series)
    with contextlib.closing(supply.broker(data_dir=tmp_path / "rabbit")) as first:
        first.start()
        publish(first.amqp_url, b"kept")
        with pytest.raises(EmbeddedError, match="in use by another"):
            supply.broker(data_dir=tmp_path / "rabbit")
    with contextlib.closing(supply.broker(data_dir=tmp_path / "rabbit")) as second:
        second.start()
        assert second.amqp_url == first.amqp_url
        assert take(second.amqp_url) == b"kept"
        second.kill()
        assert second.pid is None


def test_postgres_keeps_what_it_committed(open_folder: Path) -> None:
    with embedded.postgres(open_folder) as first, psycopg.connect(first.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS turn")
    with embedded.postgres(open_folder) as second:
        assert second.dsn() == first.dsn()
        second.ensure_database("more")
        second.ensure_database("more")
        with psycopg.connect(second.dsn("more")) as connection:
            assert connection.execute("SELECT current_setting('fsync')").fetchone() == ("on",)
        with psycopg.connect(second.dsn()) as connection:
            assert connection.execute("SELECT turn FROM kept").fetchone() == (1,)


def test_a_killed_postgres_comes_back_where_it_was(private_postgres: Callable[..., embedded.EmbeddedPostgres]) -> None:
    server = private_postgres(settings=["work_mem=5MB"])
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS turn")
        address = server.dsn()
        server.kill()
        assert server.pid is None
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    server.start()
    assert server.dsn() == address
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT turn, current_setting('work_mem') FROM kept").fetchone() == (1, "5MB")
    server.restart()
    assert "database system is ready" in server.log_tail()
