from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import psycopg
import pytest

from tarry import embedded
from tarry.embedded import ports
from tarry.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_broker_with_a_broken_configuration(private_broker: Callable[..., embedded.Broker]) -> None:
    with pytest.raises(StartupError) as caught:
        private_broker(extra_config=["no_such_setting = at all"])
    assert "did not start. The end of its log:" in str(caught.value)
    assert "no_such_setting" in str(caught.value)


def test_postgres_with_a_broken_setting() -> None:
    with pytest.raises(StartupError, match="no_such_setting"), embedded.postgres(settings=["no_such_setting=1"]):
        pass


def test_postgres_whose_port_is_taken_moves_on(monkeypatch: pytest.MonkeyPatch) -> None:
    [taken] = ports.free(1)
    [other] = ports.free(1)
    monkeypatch.setattr(ports, "again", lambda _: [taken])
    monkeypatch.setattr(ports, "free", lambda _: [other])
    with (
        socket.create_server(("127.0.0.1", taken)),
        embedded.postgres(durable=False) as server,
        psycopg.connect(server.dsn()) as connection,
    ):
        assert connection.info.port == other


def test_postgres_cannot_lay_out_its_data_in_a_folder_with_other_things(open_folder: Path) -> None:
    (open_folder / "data").mkdir()
    (open_folder / "data" / "mine").touch()
    with pytest.raises(StartupError, match="could not initialise its data directory"), embedded.postgres(open_folder):
        pass
