"""A private RabbitMQ node, from programs on this machine."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

from tarry.embedded import management
from tarry.embedded.folders import tail
from tarry.embedded.guarded import Guarded, GuardedProgram
from tarry.embedded.layout import PASSWORD, USER, Layout
from tarry.errors import EmbeddedError, StartupError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tarry.embedded.epmd import Epmd
    from tarry.embedded.installation import RabbitInstallation

PATIENCE = 120.0
PORT_ATTEMPTS = 4
# How the two series report that a port is in use: AMQP, management, distribution.
TAKEN = ("eaddrinuse", "address already in use", "dist_port_already_used")


class Node:
    """Has its files in `folder` and finds others through `epmd`.

    Can be killed and started again on the same data and ports.
    """

    def __init__(
        self,
        installation: RabbitInstallation,
        epmd: Epmd,
        folder: Path,
        *,
        throwaway: bool,
        cookie: str | None = None,
        extra_config: Sequence[str] = (),
        hold_open: Sequence[int] = (),
    ) -> None:
        self.installation = installation
        self._epmd = epmd
        self._layout = Layout(folder)
        self.extra_config = list(extra_config)
        self.erlang_args: list[str] = []
        """Arguments for its next start: settings that have no configuration key, as in `-rabbit name value`."""
        self.identity = self._layout.identity(cookie)
        self._settled = False
        self._guarded = Guarded(throwaway=[folder] if throwaway else [], hold_open=hold_open)

    def start(self) -> None:
        """Starts the node. At the first start, ports that are in use are replaced; later the ports stay the same."""
        if not self._settled:
            self.identity.replace_taken_ports()
        for attempt in range(PORT_ATTEMPTS):
            self._launch()
            if self._wait_until_ready():
                self._settled = True
                return
            self._guarded.kill()
            if self._settled or attempt == PORT_ATTEMPTS - 1 or not self._ports_were_taken():
                break
            self.identity.choose_ports()
        raise self._startup_error()

    def _launch(self) -> None:
        self._layout.write(self.identity, self.extra_config)
        self._layout.console.unlink(missing_ok=True)
        self._guarded.start(
            GuardedProgram(
                argv=self.installation.command("rabbitmq-server", folder=self._layout.folder),
                env=self._environment(),
                cwd="/",
                log=str(self._layout.console),
                grace=30,
            )
        )

    def _wait_until_ready(self) -> bool:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self._guarded.running:
            if management.serves(self.management_url, self.identity.amqp, self.name):
                return True
            time.sleep(0.05)
        return False

    def _ports_were_taken(self) -> bool:
        log = self.log_tail(400).lower()
        return any(sign in log for sign in TAKEN)

    def _startup_error(self) -> StartupError:
        """Includes much of the log: the cause comes first, and Erlang logs many consequences after it."""
        return StartupError(f"RabbitMQ {self.version} did not start. The end of its log:\n{self.log_tail(120)}")

    def _environment(self) -> dict[str, str]:
        return self._layout.environment(self.identity, self._epmd.port, self.erlang_args)

    def stop(self) -> None:
        self._guarded.stop()

    def kill(self) -> None:
        """Sends SIGKILL: what the node had not yet written is lost, as in a crash."""
        self._guarded.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """The node neither answers nor closes anything until `unpause`."""
        self._guarded.pause()

    def unpause(self) -> None:
        self._guarded.unpause()

    def ctl(self, *arguments: str) -> str:
        command = self.installation.command(
            "rabbitmqctl", "--quiet", "--node", self.identity.name, *arguments, folder=self._layout.folder
        )
        done = subprocess.run(command, env=self._environment(), cwd="/", capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise EmbeddedError(f"rabbitmqctl {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def log_tail(self, lines: int = 40) -> str:
        both = (tail(self._layout.log(self.identity), lines), tail(self._layout.console, lines))
        return "\n".join(filter(None, both))

    @property
    def version(self) -> str:
        return self.installation.version

    @property
    def source(self) -> str:
        return self.installation.source

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def pid(self) -> int | None:
        return self._guarded.pid if self._guarded.running else None

    @property
    def amqp_url(self) -> str:
        return f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.identity.amqp}/"

    @property
    def management_url(self) -> str:
        return f"http://{USER}:{PASSWORD}@127.0.0.1:{self.identity.management}"

    def close(self) -> None:
        self._guarded.close()
