from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.events import WITH_EVENTS, StreamReader, reading_stream
from tests.support.installation import Installation
from tests.support.spaces import Database, Vhost


@pytest.fixture
def installation(vhost: Vhost, database: Database, tmp_path: Path) -> Iterator[Installation]:
    """With events."""
    made = Installation(vhost.amqp_url, vhost.management_url, database.dsn, tmp_path / "topology", WITH_EVENTS)
    with contextlib.closing(made):
        yield made.apply()


@pytest.fixture
def reader(installation: Installation) -> Iterator[StreamReader]:
    with reading_stream(installation.amqp_url) as made:
        yield made
