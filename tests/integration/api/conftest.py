from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.services import Services
from tests.harness.spaces import SharedBroker
from tests.integration.api.calling import TOKENS, Installation, installation


@pytest.fixture(scope="module")
def api(broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """One service for a file of tests, with two tokens: they leave each other's retries alone."""
    with installation(broker, services, tmp_path_factory.mktemp("api"), **TOKENS) as made:
        yield made


@pytest.fixture(scope="module")
def local(broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """The same without tokens, as it is on a laptop."""
    with installation(broker, services, tmp_path_factory.mktemp("local"), token=None, API_RATE="0") as made:
        yield made
