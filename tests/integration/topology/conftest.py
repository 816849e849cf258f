from __future__ import annotations

import pytest

from tests.integration.topology.installation import TopologyInstallation
from tests.support.spaces import Vhost


@pytest.fixture
def installation(vhost: Vhost) -> TopologyInstallation:
    """A small topology, applied."""
    return TopologyInstallation(vhost).apply()
