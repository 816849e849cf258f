from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.spaces import Database
from tests.integration.audit.books import Books


@pytest.fixture
def books(database: Database) -> Iterator[Books]:
    made = Books(database.dsn)
    yield made
    made.close()
