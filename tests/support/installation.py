"""An installation of tarry for tests: a vhost with the topology applied, a database, the topology folder, a channel."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pika
import psycopg
from pika.adapters.blocking_connection import BlockingChannel

from tarry.amqp.url import Address
from tarry.embedded import management
from tarry.topology.apply import apply
from tarry.topology.load import load
from tarry.topology.model import Topology
from tests.support.amqp import close_connection, open_connection
from tests.support.services import Services
from tests.support.spaces import SharedBroker, drop_database, drop_vhost, make_database, make_vhost
from tests.support.waiting import wait_for

POLICIES = """
[ladder]
levels = 4

[[policy]]
name = "quick"
match = { queue = "quick.*" }
schedule = ["500ms"]
max_retries = 3

[[policy]]
name = "slow"
match = { queue = "slow.*" }
schedule = ["5m"]
max_retries = 3

[[policy]]
name = "default"
schedule = ["250ms", "750ms"]
max_retries = 2
"""
QUORUM = {"x-queue-type": "quorum"}


@dataclass
class BrokerClient:
    """A client of one vhost. Its connection opens when it is first used."""

    amqp_url: str
    management_url: str
    _close: Callable[[], object] = field(init=False, repr=False, compare=False)

    @property
    def address(self) -> Address:
        return Address.parse(self.amqp_url, management_url=self.management_url)

    def api(self, path: str, *, method: str = "GET", body: object = None) -> Any:
        """One request to the management API; `{vhost}` in the path is replaced by the name of the vhost."""
        vhost = urlsplit(self.amqp_url).path.removeprefix("/") or "%2F"
        return management.request(
            self.management_url, path.replace("{vhost}", vhost), method=method, body=body, timeout=30
        )

    @cached_property
    def connection(self) -> pika.BlockingConnection:
        """Closed by `close`, or together with a client that nobody has closed."""
        opened = pika.BlockingConnection(pika.URLParameters(self.amqp_url))
        self._close = weakref.finalize(self, close_connection, opened)
        return opened

    @cached_property
    def channel(self) -> BlockingChannel:
        """With publisher confirms."""
        opened = self.connection.channel()
        opened.confirm_delivery()
        return opened

    @contextmanager
    def open_channel(self) -> Iterator[BlockingChannel]:
        """A channel on a new connection, for other threads and after a broker restart."""
        with open_connection(self.amqp_url) as connection:
            yield connection.channel()

    def declare(self, queue: str, kind: str = "quorum", **arguments: Any) -> str:
        """`declare("orders", x_max_length=5)`: underscores become dashes. Returns the name."""
        given = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, **given})
        return queue

    def depth(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def get(self, queue: str) -> tuple[pika.BasicProperties, bytes] | None:
        """The next message, acknowledged; None if the queue is empty."""
        method, properties, body = self.channel.basic_get(queue, auto_ack=True)
        if method is None or properties is None or body is None:
            return None
        return properties, body

    def wait_message(self, queue: str, deadline: float = 30) -> tuple[pika.BasicProperties, bytes]:
        found = wait_for(lambda: self.get(queue), deadline=deadline, what=f"a message in {queue}")
        assert found is not None
        return found

    def take_ids(self, queue: str, count: int, deadline: float = 30) -> list[str]:
        """Takes `count` messages and returns their ids."""
        found: list[str] = []

        def enough() -> bool:
            while (message := self.get(queue)) is not None:
                found.append(str(message[0].message_id))
            return len(found) >= count

        wait_for(enough, deadline=deadline, what=f"{count} messages in {queue}")
        return found

    def reconnect(self) -> None:
        """After a broker restart: the next use opens a new connection."""
        self._close_connection()

    def close(self) -> None:
        self._close_connection()

    def _close_connection(self) -> None:
        self.__dict__.pop("channel", None)
        if self.__dict__.pop("connection", None):
            self._close()


@dataclass
class Installation(BrokerClient):
    """A vhost with the topology, a database and the topology folder."""

    dsn: str
    """Empty if the tests need no database."""
    folder: Path
    policies: str = POLICIES
    """The content of tarry.toml, unless the folder has one already."""

    @property
    def environment(self) -> dict[str, str]:
        """The settings of `tarry` for this installation."""
        settings = {
            "RABBITMQ_URL": self.amqp_url,
            "RABBITMQ_MANAGEMENT_URL": self.management_url,
            "DATABASE_URL": self.dsn,
            "TARRY_TOPOLOGY": str(self.folder),
            "TARRY_LOG": "json",
            "HTTP_PORT": "0",
        }
        return {name: value for name, value in settings.items() if value}

    @property
    def topology(self) -> Topology:
        return load(self.folder)

    def write_policies(self, text: str) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "tarry.toml").write_text(text, encoding="utf-8")

    def apply(self) -> Self:
        """Applies the topology folder to the vhost."""
        if not (self.folder / "tarry.toml").exists():
            self.write_policies(self.policies)
        apply(self.topology, self.address)
        return self

    def request(self, queue: str, message_id: str, body: bytes = b"payload", **headers: str | int) -> None:
        """Publishes a retry request in the form of headers."""
        about = pika.BasicProperties(
            delivery_mode=2, message_id=message_id, headers={"original_queue": queue, **headers}
        )
        self.channel.basic_publish("", "retry.scheduled", body, about, mandatory=True)

    def rows(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(sql.encode(), parameters or None).fetchall()

    def number(self, sql: str, *parameters: object) -> int:
        """The one value that the query returns."""
        ((value,),) = self.rows(sql, *parameters)
        return int(value)

    def states(self, message_id: str) -> list[tuple[Any, ...]]:
        """Id and state of every retry of this message id, oldest first."""
        sql = "select id::text, state from retry where message_id = %s order by first_failed_at, id"
        return self.rows(sql, message_id)

    def retry_of(self, message_id: str) -> str:
        """The id of the only retry of this message id; waits until it is in the store."""
        ((retry, _),) = wait_for(lambda: self.states(message_id), what=f"a retry of {message_id}")
        return str(retry)

    def transitions(self, state: str) -> int:
        return self.number("select count(*) from transition where state = %s", state)


@contextmanager
def shared_installation(broker: SharedBroker, services: Services, folder: Path) -> Iterator[Installation]:
    """An installation on a new vhost and a new database, for the tests of a file to share."""
    vhost = make_vhost(broker.amqp_url, broker.management_url, broker.version)
    database = make_database(services.postgres())
    try:
        with closing(Installation(vhost.amqp_url, vhost.management_url, database.dsn, folder)) as made:
            yield made.apply()
    finally:
        drop_vhost(vhost)
        drop_database(services.postgres(), database)
