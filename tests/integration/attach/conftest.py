from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.attach.installation import AttachInstallation, Run
from tests.support.spaces import Vhost


@pytest.fixture
def installation(vhost: Vhost, tmp_path: Path) -> Iterator[AttachInstallation]:
    folder = tmp_path / "topology"
    with closing(AttachInstallation(vhost.amqp_url, vhost.management_url, "", folder)) as made:
        yield made.apply()


@pytest.fixture
def _no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests in which no message moves: there is nothing to wait for."""
    monkeypatch.setattr("tarry.attach.detach.SETTLING_SECONDS", 0.1)


@pytest.fixture
def tarry(installation: AttachInstallation) -> Run:
    return installation.tarry
