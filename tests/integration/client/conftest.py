from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.spaces import Vhost
from tests.integration.client.shells import SHELLS, Consumer
from tests.integration.client.world import World


@pytest.fixture
def world(vhost: Vhost, tmp_path: Path) -> Iterator[World]:
    with contextlib.closing(World(vhost, tmp_path / "topology")) as made:
        yield made


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> type[Consumer]:
    return SHELLS[request.param]
