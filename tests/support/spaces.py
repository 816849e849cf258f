"""A vhost and a database for one test, on the shared services."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

from tarry.embedded import management
from tests.support.services import TEMPLATE

if TYPE_CHECKING:
    from tests.support.services import Services


@dataclass(frozen=True)
class SharedBroker:
    """The run's broker of one series, shared by all tests. To stop or configure a broker, use `private_broker`."""

    version: str
    source: str
    amqp_url: str
    management_url: str
    series: str | None
    services: Services

    def ctl(self, *arguments: str) -> str:
        return self.services.ctl(self.series, arguments)

    def api(self, path: str, *, method: str = "GET", body: object = None) -> Any:
        """One call of the management API, `path` without its leading /api/."""
        return management.request(self.management_url, path, method=method, body=body, timeout=30)


@dataclass(frozen=True)
class Vhost:
    name: str
    amqp_url: str
    management_url: str
    version: str

    @property
    def address(self) -> tuple[str, int]:
        return address_of(self.amqp_url)

    def through(self, port: int) -> str:
        """The AMQP URL through a proxy on that port."""
        return with_port(self.amqp_url, port)

    def api(self, path: str, *, method: str = "GET", body: object = None) -> Any:
        """One call of the management API; `{vhost}` in the path stands for this one."""
        return management.request(
            self.management_url, path.replace("{vhost}", self.name), method=method, body=body, timeout=30
        )


def make_vhost(amqp_url: str, management_url: str, version: str) -> Vhost:
    name = f"test-{secrets.token_hex(6)}"
    user = urlsplit(management_url).username
    management.request(management_url, f"vhosts/{name}", method="PUT", body={}, timeout=30)
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    management.request(management_url, f"permissions/{name}/{user}", method="PUT", body=rights, timeout=30)
    parts = urlsplit(amqp_url)
    return Vhost(name, urlunsplit(parts._replace(path=f"/{name}")), management_url, version)


def drop_vhost(vhost: Vhost) -> None:
    vhost.api("vhosts/{vhost}", method="DELETE")


@dataclass(frozen=True)
class Database:
    name: str
    dsn: str

    @property
    def address(self) -> tuple[str, int]:
        return address_of(self.dsn)

    def through(self, port: int) -> str:
        """The DSN through a proxy on that port."""
        return with_port(self.dsn, port)


def make_database(maintenance_dsn: str) -> Database:
    name = f"test_{secrets.token_hex(6)}"
    with psycopg.connect(maintenance_dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    return Database(name, urlunsplit(urlsplit(maintenance_dsn)._replace(path=f"/{name}")))


def drop_database(maintenance_dsn: str, database: Database) -> None:
    with psycopg.connect(maintenance_dsn, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {database.name} WITH (FORCE)")


def address_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "127.0.0.1", parts.port or (5432 if parts.scheme.startswith("postgres") else 5672)


def with_port(url: str, port: int) -> str:
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{port}"))
