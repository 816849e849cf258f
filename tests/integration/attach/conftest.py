from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.spaces import Vhost
from tests.integration.attach.cli import Run, runner
from tests.integration.attach.world import World, a_world


@pytest.fixture
def world(vhost: Vhost) -> Iterator[World]:
    with a_world(vhost.amqp_url, vhost.management_url) as made:
        yield made


@pytest.fixture
def tarry(tmp_path: Path, world: World, vhost: Vhost) -> Run:
    return runner(tmp_path, vhost.amqp_url, vhost.management_url)
