"""A place to work in, and routers in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.spaces import Database, Vhost
from tests.integration.router.serving import Place, Router, routers


@pytest.fixture
def place(vhost: Vhost, database: Database, tmp_path: Path) -> Iterator[Place]:
    folder = tmp_path / "topology"
    with contextlib.closing(Place(vhost.amqp_url, vhost.management_url, database.dsn, folder, vhost.api)) as made:
        yield made


@pytest.fixture
def start(place: Place) -> Iterator[Callable[..., Router]]:
    with routers(place) as starter:
        yield starter
