from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.client.adapters import ADAPTERS, Consumer
from tests.integration.client.installation import QUEUE, ClientInstallation
from tests.integration.client.programs import CLIENTS, available, end_programs
from tests.support.spaces import Vhost


@pytest.fixture
def installation(vhost: Vhost, tmp_path: Path) -> Iterator[ClientInstallation]:
    folder = tmp_path / "topology"
    with contextlib.closing(ClientInstallation(vhost.amqp_url, vhost.management_url, "", folder)) as made:
        made.apply().declare(QUEUE)
        yield made


@pytest.fixture(params=CLIENTS)
def adapter(request: pytest.FixtureRequest) -> type[Consumer]:
    return available(CLIENTS[request.param])


@pytest.fixture(params=ADAPTERS)
def python_adapter(request: pytest.FixtureRequest) -> type[Consumer]:
    return ADAPTERS[request.param]


@pytest.fixture(scope="session", autouse=True)
def ended_programs() -> Iterator[None]:
    yield
    end_programs()
