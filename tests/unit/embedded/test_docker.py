from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tarry.embedded import docker
from tarry.embedded import docker as engine
from tarry.embedded.docker import Docker, DockerBroker, image_for
from tarry.errors import EmbeddedError, StartupError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class FakeContainer:
    def __init__(self) -> None:
        self.did: list[str] = []

    def start(self) -> None:
        self.did.append("start")

    def stop(self) -> None:
        self.did.append("stop")

    def kill(self) -> None:
        self.did.append("kill")

    def pause(self) -> None:
        self.did.append("pause")

    def unpause(self) -> None:
        self.did.append("unpause")

    def remove(self, *, force: bool, v: bool) -> None:
        self.did.append(f"remove {force} {v}")

    def exec_run(self, cmd: list[str]) -> tuple[int, bytes]:
        return (0, " ".join(cmd).encode()) if "good" in cmd else (1, b"no such command")

    def logs(self, *, tail: int) -> bytes:
        return f"the last {tail} lines".encode()


class FakeEngine:
    """`runs` is called with the ports, to listen on them or not."""

    def __init__(self, runs: Callable[[dict[int, int]], None], *, alive: bool = True) -> None:
        self.alive, self.runs = alive, runs
        self.container = FakeContainer()
        self.image = ""
        self.files: dict[str, Path] = {}

    def answers(self) -> bool:
        return self.alive

    def run(self, image: str, *, hostname: str, ports: dict[int, int], files: dict[str, Path]) -> FakeContainer:
        assert hostname == "tarry"
        self.image, self.files = image, files
        self.runs(ports)
        return self.container


@pytest.fixture
def fake_engine(fake_api: Callable[[int], int]) -> FakeEngine:
    return FakeEngine(lambda ports: (fake_api(ports[15672]), None)[1])


def test_it_has_a_whole_life(fake_engine: FakeEngine, tmp_path: Path) -> None:
    supply = Docker(fake_engine).take("4.3", print)
    assert (supply.version, supply.source) == ("4.3", "Docker image rabbitmq:4.3-management")
    broker = supply.broker(data_dir=tmp_path / "data", extra_config=["vm_memory_high_watermark.relative = 0.1"])
    broker.start()
    assert broker.version == "4.3.6"
    assert fake_engine.files["/var/lib/rabbitmq"] == tmp_path / "data"
    assert "high_watermark" in fake_engine.files["/etc/rabbitmq/conf.d/90-tarry.conf"].read_text()
    assert broker.ctl("good") == "rabbitmqctl --quiet good"
    with pytest.raises(EmbeddedError, match="no such command"):
        broker.ctl("bad")
    broker.kill()
    broker.start()
    broker.pause()
    broker.unpause()
    broker.restart()
    assert broker.log_tail(7) == "the last 7 lines"
    broker.close()
    assert fake_engine.container.did == ["kill", "start", "pause", "unpause", "stop", "start", "remove True True"]


def test_docker_broker_with_kept_data_has_the_same_ports_again(fake_engine: FakeEngine, tmp_path: Path) -> None:
    supply = Docker(fake_engine).take("4.3", print)
    with (
        closing(supply.broker(data_dir=tmp_path / "data")) as first,
        closing(supply.broker(data_dir=tmp_path / "data")) as second,
        closing(supply.broker()) as other,
    ):
        assert (second.amqp_url, second.management_url) == (first.amqp_url, first.management_url)
        assert other.amqp_url != first.amqp_url


def test_one_that_never_answers_shows_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker, "PATIENCE", 0.0)
    broker = DockerBroker(FakeEngine(lambda _: None), "rabbitmq:1", data_dir=None, extra_config=())
    with pytest.raises(StartupError, match="the last 40 lines"):
        broker.start()
    broker.close()


def test_one_that_was_not_started_cannot_be_stopped() -> None:
    broker = DockerBroker(FakeEngine(lambda _: None), "rabbitmq:1", data_dir=None, extra_config=())
    with pytest.raises(EmbeddedError, match="has not been started"):
        broker.stop()
    broker.close()


def test_without_an_engine_there_is_no_container() -> None:
    assert not Docker(FakeEngine(lambda _: None, alive=False)).look(None).usable
    assert Docker(FakeEngine(lambda _: None)).look("3.10").sentence == "taking Docker image rabbitmq:3.10-management"


@pytest.mark.parametrize(
    ("chosen", "series", "expected"),
    [
        (None, None, "rabbitmq:4.3-management"),
        (None, "3.10", "rabbitmq:3.10-management"),
        ("registry.example/rabbitmq:4.3.1-management", "4.3", "registry.example/rabbitmq:4.3.1-management"),
        ("registry.example/rabbitmq:4.3.1-management", "3.10", "rabbitmq:3.10-management"),
        ("mine:latest", None, "mine:latest"),
    ],
)
def test_the_image_is_the_chosen_one_unless_it_is_of_another_series(
    chosen: str | None, series: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TARRY_RABBITMQ_IMAGE", raising=False)
    if chosen:
        monkeypatch.setenv("TARRY_RABBITMQ_IMAGE", chosen)
    assert image_for(series) == expected


def test_an_engine_nobody_listens_for_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert not engine.TestcontainersEngine().answers()
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    assert engine.somebody_listens()
