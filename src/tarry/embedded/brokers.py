"""What a broker offers here, whichever way it was had; and the usual one: a node of our own, all by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tarry.embedded.epmd import Epmd
from tarry.embedded.folders import Folder
from tarry.embedded.node import Node

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tarry.embedded.installation import Installation


class Broker(Protocol):
    """A RabbitMQ that answers, with its management API."""

    @property
    def version(self) -> str: ...
    @property
    def source(self) -> str:
        """How it was had, for people to read."""

    @property
    def amqp_url(self) -> str: ...
    @property
    def management_url(self) -> str:
        """With user and password."""

    @property
    def pid(self) -> int | None:
        """Of the Erlang machine, while it runs; None as well where it is not a process of this machine."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def restart(self) -> None: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def unpause(self) -> None: ...
    def ctl(self, *arguments: str) -> str:
        """`rabbitmqctl` for this node; returns what it printed."""

    def log_tail(self, lines: int = 40) -> str: ...
    def close(self) -> None: ...


class EmbeddedBroker(Node):
    """A node with a folder and a port mapper of its own. `data_dir=None`: everything is thrown away at the end."""

    def __init__(
        self, installation: Installation, *, data_dir: Path | str | None = None, extra_config: Sequence[str] = ()
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
