from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.integration.operations.review.reviewing import REVIEW
from tests.support.api import ApiInstallation, api_installation
from tests.support.installation import QUORUM, Installation
from tests.support.router import Router, routers
from tests.support.services import Services
from tests.support.spaces import Database, SharedBroker, Vhost

TABLES = "retry, transition, review_job, review_item, review_edit"


@pytest.fixture(scope="module")
def running(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiInstallation]:
    """One service for a file of tests."""
    with api_installation(broker, services, tmp_path_factory.mktemp("review"), API_RATE="0") as made:
        yield made


@pytest.fixture
def installation(running: ApiInstallation) -> Iterator[Installation]:
    """The file's own, with the service running and everything empty."""
    yield running.installation
    _clear(running.installation)


def _clear(installation: Installation) -> None:
    with psycopg.connect(installation.dsn) as connection:
        connection.execute(f"truncate {TABLES}".encode())
    channel = installation.channel
    for queue in (REVIEW, "orders", "bills", "quick.orders", "quick.other"):
        channel.queue_declare(queue, durable=True, passive=queue == REVIEW, arguments=QUORUM)
        channel.queue_purge(queue)


@pytest.fixture
def own_installation(vhost: Vhost, database: Database, tmp_path: Path) -> Iterator[Installation]:
    """For tests that stop or kill the service."""
    folder = tmp_path / "topology"
    with closing(Installation(vhost.amqp_url, vhost.management_url, database.dsn, folder)) as made:
        yield made.apply()


@pytest.fixture
def start(own_installation: Installation) -> Iterator[Callable[..., Router]]:
    with routers(own_installation) as made:
        yield made
