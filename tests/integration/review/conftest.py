from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.harness.services import Services
from tests.harness.spaces import Database, SharedBroker, Vhost
from tests.integration.api.calling import Installation, installation
from tests.integration.review.reviewing import REVIEW
from tests.integration.router.serving import Place, Router, routers

TABLES = "retry, transition, review_job, review_item, review_edit"


@pytest.fixture(scope="module")
def running(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """One service for a file of tests."""
    with installation(broker, services, tmp_path_factory.mktemp("review"), API_RATE="0") as made:
        yield made


@pytest.fixture
def place(running: Installation) -> Iterator[Place]:
    """With the service at work, and nothing in it."""
    yield running.place
    _clear(running.place)


def _clear(place: Place) -> None:
    with psycopg.connect(place.dsn) as connection:
        connection.execute(f"truncate {TABLES}".encode())
    for queue in (REVIEW, "orders", "bills", "quick.orders", "quick.other"):
        place.channel.queue_declare(queue, durable=True, passive=queue == REVIEW, arguments={"x-queue-type": "quorum"})
        place.channel.queue_purge(queue)


@pytest.fixture
def own_place(vhost: Vhost, database: Database, tmp_path: Path) -> Iterator[Place]:
    """For tests that stop or kill the service."""
    with closing(Place(vhost.amqp_url, vhost.management_url, database.dsn, tmp_path / "topology", vhost.api)) as made:
        yield made


@pytest.fixture
def start(own_place: Place) -> Iterator[Callable[..., Router]]:
    with routers(own_place) as made:
        yield made
