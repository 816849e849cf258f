"""A private, guarded Erlang port mapper: without it, the first node to start would leave a daemon running."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

from tarry.embedded import ports
from tarry.embedded.folders import tail
from tarry.embedded.guarded import Guarded, GuardedProgram
from tarry.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tarry.embedded.installation import RabbitInstallation

ATTEMPTS = 5
PATIENCE = 10.0


class Epmd:
    """Deletes the folder at the end, because it is the first process to start and the last to stop."""

    def __init__(self, installation: RabbitInstallation, folder: Path, *, throwaway: Sequence[Path]) -> None:
        self.port = 0
        self._installation = installation
        self._folder = folder
        self._guarded = Guarded(throwaway=throwaway)

    def start(self) -> None:
        for _ in range(ATTEMPTS):
            self.port = ports.free(1)[0]
            self._guarded.start(self._service())
            if self._answers():
                return
        raise StartupError(f"Erlang's port mapper did not start:\n{tail(self._folder / 'epmd.log')}")

    def _service(self) -> GuardedProgram:
        arguments = ("-port", str(self.port), "-address", "127.0.0.1")
        return GuardedProgram(
            argv=self._installation.command("epmd", *arguments, folder=self._folder),
            env={"PATH": os.environ.get("PATH", os.defpath)},
            cwd="/",
            log=str(self._folder / "epmd.log"),
            grace=2,
        )

    def _answers(self) -> bool:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self._guarded.running:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return self._guarded.running
        return False

    @property
    def running(self) -> bool:
        return self._guarded.running

    @property
    def pid(self) -> int | None:
        return self._guarded.pid if self._guarded.running else None

    def close(self) -> None:
        self._guarded.close()
