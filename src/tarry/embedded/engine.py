"""The little of a Docker engine that is needed, behind a port so that the rest can be tested without one."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path


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
    """A Docker engine, as little of it as is needed."""

    def answers(self) -> bool: ...
    def run(self, image: str, *, hostname: str, ports: dict[int, int], files: dict[str, Path]) -> Container:
        """`ports` maps the container's to loopback ports here, `files` local paths to paths inside."""


class TestcontainersEngine:
    """Its reaper container removes what a killed owner left behind."""

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
    """Cheaper than asking docker's library, which leaves sockets open when nobody does."""
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not host.startswith("unix://"):
        return True
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(host.removeprefix("unix://")) == 0
