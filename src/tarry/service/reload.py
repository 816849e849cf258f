"""Reloads policies while the service runs: on SIGHUP or when the files change. After a bad change the old ones stay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from tarry.amqp.url import Address
from tarry.errors import BrokerError, TarryError, TopologyError
from tarry.service.startup_checks import check_topology, log_warnings
from tarry.tasks import in_thread, sleep_unless
from tarry.topology.checks.files import APPLIED
from tarry.topology.load import MAIN_FILE, POLICY_FOLDER
from tarry.topology.model import Topology

log = structlog.get_logger()

LOOK_EVERY = 2.0
TRY_EVERY = 10.0
"""Seconds between attempts to use a change that the broker is not ready for."""

Fingerprint = tuple[tuple[str, int, int], ...]


@dataclass(slots=True)
class Reload:
    """Watches the files and calls `use` with each topology that can be used."""

    folder: Path
    read: Callable[[], Topology]
    address: Address
    use: Callable[[Topology], None]
    current: Topology
    count: Callable[[str], None]
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by SIGHUP."""
    _complaint: str | None = None

    async def watch(self, stop: asyncio.Event) -> None:
        """Runs until `stop` is set."""
        seen = fingerprint(self.folder)
        next_try = float("inf")
        clock = asyncio.get_running_loop().time
        while not await sleep_unless(stop, LOOK_EVERY) or self.asked.is_set():
            if stop.is_set():
                return
            now = fingerprint(self.folder)
            if now == seen and not self.asked.is_set() and clock() < next_try:
                continue
            if now != seen or self.asked.is_set():
                self._complaint = None
            seen = now
            self.asked.clear()
            next_try = float("inf") if await self.try_it() else clock() + TRY_EVERY

    async def try_it(self) -> bool:
        """Returns False if the same files may be usable later, once the broker has what they need."""
        try:
            wanted = await in_thread(self.read, "reload")
            self._refuse_restart(wanted)
        except TarryError as error:
            self._complain("topology not reloaded, the old one stays", error)
            return True
        if wanted == self.current:
            return True
        try:
            found = await in_thread(lambda: check_topology(wanted, self.address), "reload check")
        except BrokerError as error:
            self._complain("topology not reloaded, the broker is not ready for it: run `tarry topology apply`", error)
            return False
        self.current = wanted
        self.use(wanted)
        self.count("used")
        log.info("topology reloaded", policies=[policy.name for policy in wanted.policies])
        log_warnings(finding for finding in found if finding.check != APPLIED)
        return True

    def _refuse_restart(self, wanted: Topology) -> None:
        if (wanted.names, wanted.ladder) != (self.current.names, self.current.ladder):
            raise TopologyError("names and ladder cannot change while the service runs: restart it for that.")
        if wanted.events.enabled != self.current.events.enabled:
            raise TopologyError("events cannot be switched while the service runs: restart it for that.")

    def _complain(self, event: str, error: TarryError) -> None:
        """Logs and counts each reason once."""
        if str(error) != self._complaint:
            self._complaint = str(error)
            self.count("refused")
            log.error(event, problems=str(error).splitlines())


def fingerprint(folder: Path) -> Fingerprint:
    """A value that changes when a file is changed, added or removed."""
    found = []
    for path in (folder / MAIN_FILE, *sorted((folder / POLICY_FOLDER).glob("*.toml"))):
        try:
            about = path.stat()
        except OSError:
            continue
        found.append((str(path), about.st_mtime_ns, about.st_size))
    return tuple(found)
