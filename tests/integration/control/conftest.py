from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tarry.topology.load import load
from tarry.topology.model import Topology
from tests.harness.services import Services
from tests.harness.spaces import Database, SharedBroker, Vhost
from tests.integration.api.calling import TOKENS, Installation, installation
from tests.integration.control.terminal import Terminal
from tests.integration.router.serving import Place, Router, routers


@pytest.fixture
def place(vhost: Vhost, database: Database, tmp_path: Path) -> Iterator[Place]:
    with closing(Place(vhost.amqp_url, vhost.management_url, database.dsn, tmp_path / "topology", vhost.api)) as made:
        yield made


@pytest.fixture
def topology(request: pytest.FixtureRequest) -> Topology:
    """The place's own, if the test has one."""
    if "place" in request.fixturenames:
        place: Place = request.getfixturevalue("place")
        return load(place.folder)
    return load(Path("topology"))


@pytest.fixture
def start(place: Place) -> Iterator[Callable[..., Router]]:
    with routers(place) as made:
        yield made


@pytest.fixture(scope="module")
def there(broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(broker, services, tmp_path_factory.mktemp("hands"), **TOKENS) as made:
        yield made


@pytest.fixture(params=["direct", "api"])
def terminal(there: Installation, request: pytest.FixtureRequest) -> Terminal:
    return Terminal(there, request.param == "api")
