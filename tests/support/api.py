"""An installation with a running router, and calls of its HTTP API."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tarry.settings.tokens import Role, new_token
from tests.support.hurry import HURRIED
from tests.support.installation import Installation, shared_installation
from tests.support.router import Router, routers
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

LOOK, LOOK_ENTRY = new_token("viewer", Role.LOOK)
OPERATE, OPERATE_ENTRY = new_token("ops", Role.OPERATE)
TOKENS = {"API_TOKENS": f"{LOOK_ENTRY}, {OPERATE_ENTRY}", "API_RATE": "0"}


@dataclass
class ApiInstallation:
    """An installation, its router, and a client of the router's HTTP API."""

    installation: Installation
    router: Router
    token: str | None = OPERATE
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=90)

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
        def is_so() -> bool:
            answer = self.call("GET", f"/retries/{retry}")
            return answer.status_code == 200 and answer.json()["state"] == state

        wait_for(is_so, what=f"{retry} to be {state}")

    def schedule(self, queue: str, message: str, body: bytes = b"payload", **headers: str | int) -> str:
        """Requests a retry, waits until it is scheduled, and returns its id."""
        self.installation.request(self.installation.declare(queue), message, body, **headers)
        found = self.installation.retry_of(message)
        self.wait_state(found, "scheduled")
        return found

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.installation.rows(sql)

    def close(self) -> None:
        self.client.close()


@contextlib.contextmanager
def api_installation(
    broker: SharedBroker, services: Services, folder: Path, token: str | None = OPERATE, **settings: str
) -> Iterator[ApiInstallation]:
    """A new vhost, a new database and a router that is ready; its pauses are short."""
    with (
        shared_installation(broker, services, folder / "topology") as installation,
        routers(installation) as start,
        contextlib.closing(ApiInstallation(installation, start(**(HURRIED | settings)).wait_ready(), token)) as made,
    ):
        yield made
