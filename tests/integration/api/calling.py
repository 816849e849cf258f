"""A running service with its API, and callers of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg

from tarry.settings.tokens import Role, new_token
from tests.harness.services import Services
from tests.harness.spaces import (
    Database,
    SharedBroker,
    Vhost,
    drop_database,
    drop_vhost,
    make_database,
    make_vhost,
)
from tests.harness.waiting import wait_for
from tests.integration.router.serving import Place, Router, routers

LOOK, LOOK_ENTRY = new_token("viewer", Role.LOOK)
OPERATE, OPERATE_ENTRY = new_token("ops", Role.OPERATE)
TOKENS = {"API_TOKENS": f"{LOOK_ENTRY}, {OPERATE_ENTRY}", "API_RATE": "0"}


@dataclass
class Installation:
    """A place with a router in it."""

    place: Place
    router: Router
    token: str | None = OPERATE
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=30)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.router.port}"

    def call(self, method: str, path: str, *, token: str | None = None, **more: Any) -> httpx.Response:
        headers = dict(more.pop("headers", {}))
        if token or self.token:
            headers.setdefault("Authorization", f"Bearer {token or self.token}")
        return self.client.request(method, f"/api/v1{path}", headers=headers, **more)

    def get(self, path: str, **more: Any) -> Any:
        answer = self.call("GET", path, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait_state(self, retry: str, state: str) -> None:
        def there() -> bool:
            answer = self.call("GET", f"/retries/{retry}")
            return answer.status_code == 200 and answer.json()["state"] == state

        wait_for(there, what=f"{retry} to be {state}")

    def schedule(self, queue: str, message: str, body: bytes = b"payload", **headers: str | int) -> str:
        """A retry that waits; its id."""
        self.place.request(self.place.origin(queue), message, body, **headers)
        found = self.place.retry_of(message)
        self.wait_state(found, "scheduled")
        return found

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.place.dsn) as connection:
            return connection.execute(sql.encode()).fetchall()

    def close(self) -> None:
        self.client.close()


@contextlib.contextmanager
def _place(vhost: Vhost, database: Database, folder: Path) -> Iterator[Place]:
    made = Place(vhost.amqp_url, vhost.management_url, database.dsn, folder, vhost.api)
    with contextlib.closing(made):
        yield made


@contextlib.contextmanager
def installation(
    broker: SharedBroker, services: Services, folder: Path, token: str | None = OPERATE, **settings: str
) -> Iterator[Installation]:
    """A vhost, a database and a router of one's own."""
    vhost = make_vhost(broker.amqp_url, broker.management_url, broker.version)
    database = make_database(services.postgres())
    try:
        with (
            _place(vhost, database, folder / "topology") as place,
            routers(place) as start,
            contextlib.closing(Installation(place, start(**settings).wait_ready(), token)) as made,
        ):
            yield made
    finally:
        drop_vhost(vhost)
        drop_database(services.postgres(), database)
