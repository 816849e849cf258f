from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.audit_world import World
from tests.harness.spaces import Database, Vhost


@pytest.fixture
def world(vhost: Vhost, database: Database, tmp_path: Path) -> Iterator[World]:
    """An installation on a vhost and a database of its own; routers are started by the test."""
    with closing(World(vhost.amqp_url, vhost.management_url, database.dsn, tmp_path / "topology")) as made:
        made.apply()
        yield made
