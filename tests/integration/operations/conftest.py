from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tarry.topology.load import load
from tarry.topology.model import Topology
from tests.integration.operations.terminal import Terminal
from tests.support.api import TOKENS, ApiInstallation, api_installation
from tests.support.installation import Installation
from tests.support.services import Services
from tests.support.spaces import SharedBroker


@pytest.fixture
def topology(request: pytest.FixtureRequest) -> Topology:
    """That of the installation, if the test has one."""
    if "installation" in request.fixturenames:
        installation: Installation = request.getfixturevalue("installation")
        return installation.topology
    return load(Path("topology"))


@pytest.fixture(scope="module")
def api(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiInstallation]:
    """One service for a file of tests."""
    with api_installation(broker, services, tmp_path_factory.mktemp("operations"), **TOKENS) as made:
        yield made


@pytest.fixture(params=["direct", "api"])
def terminal(api: ApiInstallation, request: pytest.FixtureRequest) -> Terminal:
    return Terminal(api, request.param == "api")
