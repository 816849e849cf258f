"""What a measurement runs on: one broker and one Postgres for all of them, a fresh vhost and database for each."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pika
import psycopg

from tarry import embedded
from tarry.amqp.url import Address
from tarry.embedded import management
from tarry.store.database import migrate
from tarry.topology.apply import apply
from tarry.topology.load import load
from tarry.topology.model import Topology

ORIGIN = "bench.orders"
EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}


@dataclass(frozen=True)
class Space:
    """A vhost with the topology in it, a migrated database, and an origin queue."""

    address: Address
    dsn: str
    folder: Path
    topology: Topology

    @property
    def environment(self) -> dict[str, str]:
        """For a service that shall run here."""
        return {
            "RABBITMQ_URL": self.address.url,
            "RABBITMQ_MANAGEMENT_URL": self.address.management,
            "DATABASE_URL": self.dsn,
            "TARRY_TOPOLOGY": str(self.folder),
            "TARRY_LOG": "json",
        }


@dataclass(frozen=True)
class Stage:
    """The services."""

    broker: embedded.Broker
    postgres: embedded.EmbeddedPostgres

    @property
    def broker_pids(self) -> list[int]:
        """Where it runs on this machine."""
        return [self.broker.pid] if self.broker.pid else []

    def broker_memory_mib(self) -> float:
        """What its node has in use. What the system has lent it says less: it is not given back at once."""
        api = self.broker.management_url
        node = management.request(api, "overview", timeout=30)["node"]
        return float(management.request(api, f"nodes/{node}/memory", timeout=30)["memory"]["total"]["erlang"]) / 2**20

    @contextlib.contextmanager
    def space(self, delay: str, *, bare: bool = False) -> Iterator[Space]:
        """One policy with one delay and no jitter: every message waits in the same tier.

        A bare one has the vhost, the database and the origin queue, and nothing of tarry in them.
        """
        name = f"bench_{secrets.token_hex(4)}"
        api = self.broker.management_url
        management.request(api, f"vhosts/{name}", method="PUT", body={}, timeout=30)
        user = Address.parse(self.broker.amqp_url).user
        management.request(api, f"permissions/{name}/{user}", method="PUT", body=EVERYTHING, timeout=30)
        with psycopg.connect(self.postgres.dsn(), autocommit=True) as connection:
            connection.execute(f"create database {name}")
        with tempfile.TemporaryDirectory() as folder:
            try:
                yield self._furnish(name, Path(folder), delay, bare=bare)
            finally:
                management.request(api, f"vhosts/{name}", method="DELETE", timeout=600)
                with psycopg.connect(self.postgres.dsn(), autocommit=True) as connection:
                    connection.execute(f"drop database {name} with (force)")

    def _furnish(self, name: str, folder: Path, delay: str, *, bare: bool) -> Space:
        (folder / "tarry.toml").write_text(
            f'[[policy]]\nname = "bench"\nschedule = ["{delay}"]\nmax_retries = 3\n', encoding="utf-8"
        )
        base = Address.parse(self.broker.amqp_url)
        url = f"amqp://{base.user}:{base.password}@{base.host}:{base.port}/{name}"
        address = Address.parse(url, management_url=self.broker.management_url)
        topology = load(folder)
        if not bare:
            apply(topology, address)
        with contextlib.closing(pika.BlockingConnection(address.parameters("benchmark"))) as connection:
            connection.channel().queue_declare(ORIGIN, durable=True, arguments={"x-queue-type": "quorum"})
        dsn = self.postgres.dsn(name)
        if not bare:
            asyncio.run(migrate(dsn))
        return Space(address, dsn, folder, topology)


@contextlib.contextmanager
def stage(series: str | None) -> Iterator[Stage]:
    with embedded.broker(series) as broker, embedded.postgres() as postgres:
        yield Stage(broker, postgres)
