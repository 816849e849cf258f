"""The services of a whole test run: one broker for each series and one PostgreSQL, started when first needed.

They belong to the process that controls the run. With pytest-xdist the workers call it over a socket; without, the
same object answers directly. When that process ends, for whatever reason, the services' guardians end them.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import tempfile
import threading
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Protocol

import psycopg

from tarry import embedded
from tarry.amqp.management import Management
from tarry.amqp.url import Address
from tarry.embedded.installation import in_series
from tarry.embedded.node import Node
from tarry.errors import NoBrokerError, TarryError

TEMPLATE = "tarry_template"
CALM = ("+sbwt none", "+sbwtdcpu none", "+sbwtdio none")
"""The broker's threads do not wait busily: it starts a second later, and a run takes a fifth less of its time."""
GIVEN_URL = "TARRY_TEST_RABBITMQ_URL"
GIVEN_MANAGEMENT_URL = "TARRY_TEST_RABBITMQ_MANAGEMENT_URL"


@dataclass(frozen=True)
class BrokerFacts:
    version: str
    source: str
    amqp_url: str
    management_url: str


class MissingBrokerError(Exception):
    """No broker of the wanted series is available here."""


def given_broker(series: str | None) -> BrokerFacts | None:
    """The broker that the environment names for tests only; it must be of the wanted series."""
    url = os.environ.get(GIVEN_URL)
    if not url:
        return None
    address = Address.parse(url, management_url=os.environ.get(GIVEN_MANAGEMENT_URL))
    version = str(Management(address).overview()["rabbitmq_version"])
    if not in_series(version, series):
        raise MissingBrokerError(f"the broker of {GIVEN_URL} has version {version}, not {series}")
    return BrokerFacts(version, GIVEN_URL, address.url, address.management_with_login)


class Services(Protocol):
    def broker(self, series: str | None) -> BrokerFacts: ...
    def ctl(self, series: str | None, arguments: tuple[str, ...]) -> str: ...
    def postgres(self) -> str:
        """The address of PostgreSQL's maintenance database; the template is prepared by then."""


class RunServices:
    """The services themselves."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._brokers: dict[str | None, embedded.Broker | Exception] = {}
        self._dsn: str | Exception | None = None

    def broker(self, series: str | None) -> BrokerFacts:
        if given := given_broker(series):
            return given
        node = self._node(series)
        return BrokerFacts(node.version, node.source, node.amqp_url, node.management_url)

    def ctl(self, series: str | None, arguments: tuple[str, ...]) -> str:
        if given_broker(series):
            raise MissingBrokerError(f"rabbitmqctl {' '.join(arguments)}: not on the broker of {GIVEN_URL}")
        return self._node(series).ctl(*arguments)

    def _node(self, series: str | None) -> embedded.Broker:
        with self._lock:
            if series not in self._brokers:
                self._brokers[series] = self._start(series)
            node = self._brokers[series]
        if isinstance(node, Exception):
            raise node
        return node

    def _start(self, series: str | None) -> embedded.Broker | Exception:
        """A failure is remembered, so that only the first test waits for it."""
        try:
            node = self._stack.enter_context(contextlib.closing(embedded.obtain(series).broker()))
            if isinstance(node, Node):
                node.erlang_args = list(CALM)
            node.start()
        except NoBrokerError as problem:
            return MissingBrokerError(str(problem))
        except TarryError as problem:
            return problem
        return node

    def postgres(self) -> str:
        with self._lock:
            if self._dsn is None:
                try:
                    self._dsn = self._start_postgres()
                except Exception as problem:  # noqa: BLE001  remembered and raised to every test that asks
                    self._dsn = problem
        if isinstance(self._dsn, Exception):
            raise self._dsn
        return self._dsn

    def _start_postgres(self) -> str:
        server = self._stack.enter_context(embedded.postgres(durable=False, settings=["max_connections=300"]))
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {TEMPLATE}")
        if importlib.util.find_spec("tarry.store.database"):
            from tarry.store.database import migrate  # noqa: PLC0415  only where the audit is there

            asyncio.run(migrate(server.dsn(TEMPLATE)))
        return server.dsn()

    def used(self) -> list[str]:
        """One line for each broker, for people to read."""
        return [
            f"RabbitMQ {series or ''}: {str(node).splitlines()[0]}"
            if isinstance(node, Exception)
            else f"RabbitMQ {node.version}: {node.source}"
            for series, node in self._brokers.items()
        ]

    def close(self) -> None:
        self._stack.close()


class ServiceServer:
    """Answers the workers' calls, with one thread for each worker."""

    def __init__(self, services: RunServices) -> None:
        self._services = services
        self._folder = tempfile.TemporaryDirectory(prefix="tarry-tests-")
        self._listener = Listener(str(Path(self._folder.name) / "socket"))
        self.address = str(self._listener.address)
        self._open = True
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while self._open:
            worker = self._listener.accept()
            threading.Thread(target=self._serve, args=(worker,), daemon=True).start()

    def _serve(self, worker: Connection) -> None:
        with worker, contextlib.suppress(EOFError, OSError):
            while True:
                name, arguments = worker.recv()
                try:
                    worker.send((True, getattr(self._services, name)(*arguments)))
                except Exception as problem:  # noqa: BLE001  raised again in the worker
                    worker.send((False, problem))

    def close(self) -> None:
        self._open = False
        Client(self.address).close()  # wakes the accepting thread
        self._thread.join()
        self._listener.close()
        self._folder.cleanup()


class RemoteServices:
    """The services, as a worker calls them through the server."""

    def __init__(self, address: str) -> None:
        self._connection = Client(address)

    def _ask(self, name: str, *arguments: object) -> Any:
        self._connection.send((name, arguments))
        worked, answer = self._connection.recv()
        if not worked:
            raise answer
        return answer

    def broker(self, series: str | None) -> BrokerFacts:
        facts: BrokerFacts = self._ask("broker", series)
        return facts

    def ctl(self, series: str | None, arguments: tuple[str, ...]) -> str:
        return str(self._ask("ctl", series, arguments))

    def postgres(self) -> str:
        return str(self._ask("postgres"))

    def close(self) -> None:
        self._connection.close()
