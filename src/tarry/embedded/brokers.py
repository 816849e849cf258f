"""The interface of a private broker, whatever its source, and the usual implementation: a single node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tarry.embedded.epmd import Epmd
from tarry.embedded.folders import Folder
from tarry.embedded.node import Node

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tarry.embedded.installation import RabbitInstallation


class Broker(Protocol):
    """A running RabbitMQ with its management API."""

    @property
    def version(self) -> str: ...
    @property
    def source(self) -> str:
        """Where it came from, for display."""

    @property
    def amqp_url(self) -> str: ...
    @property
    def management_url(self) -> str:
        """With user and password."""

    @property
    def pid(self) -> int | None:
        """The process id of the Erlang VM while it runs; None also if it is not a process of this machine."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def restart(self) -> None: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def unpause(self) -> None: ...
    def ctl(self, *arguments: str) -> str:
        """Runs `rabbitmqctl` for this node; returns its output."""

    def log_tail(self, lines: int = 40) -> str: ...
    def close(self) -> None: ...


class EmbeddedBroker(Node):
    """A node with its own folder and port mapper. With `data_dir=None` everything is deleted at the end."""

    def __init__(
        self, installation: RabbitInstallation, *, data_dir: Path | str | None = None, extra_config: Sequence[str] = ()
    ) -> None:
        self._folder = Folder("rabbitmq", data_dir)
        self._own_epmd = Epmd(installation, self._folder.path, throwaway=self._folder.to_remove)
        super().__init__(
            installation,
            self._own_epmd,
            self._folder.path,
            throwaway=self._folder.throwaway,
            extra_config=extra_config,
            hold_open=[self._folder.lock],
        )

    def start(self) -> None:
        if not self._own_epmd.running:
            self._own_epmd.start()
        super().start()

    @property
    def data_dir(self) -> Path:
        return self._folder.path

    def close(self) -> None:
        super().close()
        self._own_epmd.close()
        self._folder.close()
