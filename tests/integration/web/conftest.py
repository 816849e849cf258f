from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api import TOKENS, ApiInstallation, api_installation
from tests.support.services import Services
from tests.support.spaces import SharedBroker


@pytest.fixture(scope="module")
def api(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiInstallation]:
    """One service for a file of tests, with two tokens. Each test uses its own retries."""
    with api_installation(broker, services, tmp_path_factory.mktemp("api"), **TOKENS) as made:
        yield made


@pytest.fixture(scope="module")
def local(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiInstallation]:
    """The same without tokens, as on a laptop."""
    with api_installation(broker, services, tmp_path_factory.mktemp("local"), token=None, API_RATE="0") as made:
        yield made
