from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.audited import AuditedInstallation
from tests.support.spaces import Database, Vhost


@pytest.fixture
def installation(vhost: Vhost, database: Database, tmp_path: Path) -> Iterator[AuditedInstallation]:
    """On a vhost and a database of its own; the test starts the routers."""
    folder = tmp_path / "topology"
    with closing(AuditedInstallation(vhost.amqp_url, vhost.management_url, database.dsn, folder)) as made:
        yield made.apply()


@pytest.fixture
def exported(vhost: Vhost, database: Database) -> Mapping[str, str]:
    """The variables that the README exports, and others that may name a user's own installation."""
    return {
        "RABBITMQ_URL": vhost.amqp_url,
        "RABBITMQ_MANAGEMENT_URL": vhost.management_url,
        "RABBITMQ_CA_FILE": "/nowhere/ca.pem",
        "DATABASE_URL": database.dsn,
        "PGSSLMODE": "require",
        "PGHOSTADDR": "192.0.2.1",
        "HTTP_HOST": "192.0.2.1",
        "RETRY_QUEUE": "shop.requests",
    }
