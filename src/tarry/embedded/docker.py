"""Brokers in Docker, and an interface to the part of a Docker engine that they need, for tests without an engine."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tarry.embedded import management, ports
from tarry.embedded.installation import in_series
from tarry.embedded.layout import PASSWORD, USER
from tarry.embedded.sources import Announce, Availability
from tarry.errors import EmbeddedError, StartupError


class Container(Protocol):
    """The part of docker's container object that is used."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def unpause(self) -> None: ...
    def remove(self, *, force: bool, v: bool) -> None: ...
    def exec_run(self, cmd: list[str]) -> Any: ...
    def logs(self, *, tail: int) -> bytes: ...


class Engine(Protocol):
    """The part of a Docker engine that is used."""

    def answers(self) -> bool: ...
    def run(self, image: str, *, hostname: str, ports: dict[int, int], files: dict[str, Path]) -> Container:
        """`ports` maps container ports to local loopback ports, `files` maps paths in the container to local paths."""


class TestcontainersEngine:
    """Uses testcontainers, whose reaper container removes what a killed owner left behind."""

    def answers(self) -> bool:
        if importlib.util.find_spec("testcontainers") is None or not somebody_listens():
            return False
        import docker  # type: ignore[import-untyped]  # noqa: PLC0415  an optional dependency

        try:
            client = docker.from_env(timeout=3)
        except docker.errors.DockerException:
            return False
        with contextlib.closing(client):
            return bool(client.ping())

    def run(self, image: str, *, hostname: str, ports: dict[int, int], files: dict[str, Path]) -> Container:
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415  an optional dependency

        loopback = {f"{inside}/tcp": ("127.0.0.1", outside) for inside, outside in ports.items()}
        container = DockerContainer(image, hostname=hostname)
        container.ports.update(loopback)  # type: ignore[arg-type]  # with_bind_ports() listens on every interface
        for inside_path, path in files.items():
            container.with_volume_mapping(str(path), inside_path, "rw")
        wrapped: Container = container.start().get_wrapped_container()
        return wrapped


def somebody_listens() -> bool:
    """Cheaper than asking docker's library, which leaves sockets open if there is no engine."""
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not host.startswith("unix://"):
        return True
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(host.removeprefix("unix://")) == 0


DEFAULT_IMAGE = "rabbitmq:4.3-management"
PATIENCE = 120.0


def image_for(series: str | None) -> str:
    chosen = os.environ.get("TARRY_RABBITMQ_IMAGE", DEFAULT_IMAGE)
    tag = chosen.rpartition(":")[2].partition("-")[0]
    return chosen if in_series(tag, series) else f"rabbitmq:{series}-management"


class DockerBroker:
    """One container with fixed loopback ports, so that its address stays the same after a restart."""

    pid: int | None = None

    def __init__(self, engine: Engine, image: str, *, data_dir: Path | str | None, extra_config: Sequence[str]) -> None:
        self.source = f"Docker image {image}"
        self.version = ""
        self._engine, self._image = engine, image
        kept = None if data_dir is None else Path(data_dir).with_name(f"{Path(data_dir).name}-ports.json")
        self._amqp, self._management = ports.again(ports.read(kept, 2)) if kept else ports.free(2)
        self._container: Container | None = None
        self._settings = tempfile.TemporaryDirectory(prefix="tarry-rabbitmq-")
        settings = Path(self._settings.name) / "90-tarry.conf"
        settings.write_text("\n".join(["disk_free_limit.absolute = 50MB", *extra_config, ""]))
        Path(self._settings.name).chmod(0o755)  # the user inside the container reads it
        self._files = {"/etc/rabbitmq/conf.d/90-tarry.conf": settings}
        if data_dir is not None:
            Path(data_dir).mkdir(parents=True, exist_ok=True)
            self._files["/var/lib/rabbitmq"] = Path(data_dir).absolute()
        if kept is not None:  # next to the data, which the user inside the container will own
            ports.write(kept, [self._amqp, self._management])

    def start(self) -> None:
        if self._container is None:
            # The node name contains the host name, and the data folder contains the node name.
            published = {5672: self._amqp, 15672: self._management}
            self._container = self._engine.run(self._image, hostname="tarry", ports=published, files=self._files)
        else:
            self._container.start()
        deadline = time.monotonic() + PATIENCE
        while not management.serves(self.management_url, 5672):
            if time.monotonic() > deadline:
                raise StartupError(f"{self.source} did not come up. The end of its log:\n{self.log_tail()}")
            time.sleep(0.2)
        self.version = management.version(self.management_url)

    @property
    def amqp_url(self) -> str:
        return f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self._amqp}/"

    @property
    def management_url(self) -> str:
        return f"http://{USER}:{PASSWORD}@127.0.0.1:{self._management}"

    def _running(self) -> Container:
        if self._container is None:
            raise EmbeddedError(f"{self.source} has not been started. Call start() first.")
        return self._container

    def stop(self) -> None:
        self._running().stop()

    def kill(self) -> None:
        self._running().kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        self._running().pause()

    def unpause(self) -> None:
        self._running().unpause()

    def ctl(self, *arguments: str) -> str:
        code, output = self._running().exec_run(["rabbitmqctl", "--quiet", *arguments])
        if code != 0:
            raise EmbeddedError(f"rabbitmqctl {' '.join(arguments)} failed:\n{output.decode(errors='replace')}")
        return str(output.decode(errors="replace"))

    def log_tail(self, lines: int = 40) -> str:
        return self._running().logs(tail=lines).decode(errors="replace")

    def close(self) -> None:
        if self._container is not None:
            self._container.remove(force=True, v=True)
            self._container = None
        self._settings.cleanup()


@dataclass(frozen=True)
class DockerSupply:
    engine: Engine
    image: str

    @property
    def version(self) -> str:
        """The version in the image's tag; a running broker reports the exact one."""
        return self.image.rpartition(":")[2].partition("-")[0]

    @property
    def source(self) -> str:
        return f"Docker image {self.image}"

    def broker(self, *, data_dir: Path | str | None = None, extra_config: Sequence[str] = ()) -> DockerBroker:
        return DockerBroker(self.engine, self.image, data_dir=data_dir, extra_config=extra_config)


@dataclass(frozen=True)
class Docker:
    engine: Engine = field(default_factory=TestcontainersEngine)
    name: str = "Docker"

    def look(self, series: str | None) -> Availability:
        if not self.engine.answers():
            return Availability(usable=False, sentence="no engine answers, or testcontainers is not installed")
        return Availability(usable=True, sentence=f"taking Docker image {image_for(series)}")

    def take(self, series: str | None, announce: Announce) -> DockerSupply:  # noqa: ARG002  as every source
        return DockerSupply(self.engine, image_for(series))
