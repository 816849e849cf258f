from __future__ import annotations

import pytest

from tests.harness.spaces import Vhost
from tests.integration.topology.tools import Installation


@pytest.fixture
def installation(vhost: Vhost) -> Installation:
    """A small topology, applied."""
    return Installation(vhost).apply()
