"""Brokers from programs on this machine: already installed, installed now, or built into a cached Debian root."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tarry.embedded import debian_root, installation, package
from tarry.embedded.brokers import EmbeddedBroker
from tarry.embedded.installation import RabbitInstallation, in_series
from tarry.embedded.sources import Availability
from tarry.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tarry.embedded.package import Manager
    from tarry.embedded.sources import Announce


@dataclass(frozen=True)
class InstalledSupply:
    installation: RabbitInstallation

    @property
    def version(self) -> str:
        return self.installation.version

    @property
    def source(self) -> str:
        return self.installation.source

    def broker(self, *, data_dir: Path | str | None = None, extra_config: Sequence[str] = ()) -> EmbeddedBroker:
        return EmbeddedBroker(self.installation, data_dir=data_dir, extra_config=extra_config)


def installed(series: str | None) -> RabbitInstallation | None:
    for home, version in installation.find():
        if in_series(version, series):
            return RabbitInstallation(home, version, f"rabbitmq-server on this machine ({home})")
    return None


@dataclass(frozen=True)
class OnThisMachine:
    name: str = "rabbitmq-server on this machine"

    def look(self, series: str | None) -> Availability:
        if found := installed(series):
            return Availability(usable=True, sentence=f"taking {found.version} from this machine, {found.home}")
        others = ", ".join(version for _, version in installation.find())
        return Availability(usable=False, sentence=f"only {others}, not {series}" if others else "not installed")

    def take(self, series: str | None, announce: Announce) -> InstalledSupply:  # noqa: ARG002  as every source
        found = installed(series)
        if found is None:
            raise EmbeddedError("rabbitmq-server is no longer on this machine. Try again.")
        return InstalledSupply(found)


@dataclass(frozen=True)
class DistributionPackage:
    managers: Sequence[Manager] = package.MANAGERS
    name: str = "the distribution's package"

    def look(self, series: str | None) -> Availability:
        manager = next((manager for manager in self.managers if manager.present), None)
        if manager is None:
            return Availability(usable=False, sentence=f"none of {', '.join(m.program for m in self.managers)} is here")
        if not manager.allowed:
            return Availability(usable=False, sentence=f"{manager.program} is here, but needs root or `sudo -n`")
        version = manager.candidate()
        if version is not None and not in_series(version, series):
            return Availability(usable=False, sentence=f"{manager.program} has {version}, not {series}")
        what = version or "whatever version there is"
        return Availability(
            usable=True, sentence=f"installing {what} with {manager.program}; its service is not started"
        )

    def take(self, series: str | None, announce: Announce) -> InstalledSupply:
        next(manager for manager in self.managers if manager.present).install()
        found = installed(series)
        if found is None:
            raise EmbeddedError(f"the package was installed, but it is not RabbitMQ {series or 'of a known layout'}")
        announce(f"RabbitMQ: installed {found.version} in {found.home}")
        return InstalledSupply(found)


@dataclass(frozen=True)
class CachedRoot:
    """For a series that the distribution does not have. Built only on demand, because it takes 500 MB."""

    build: Callable[[str, Announce], Path] = debian_root.ensure
    name: str = "a cached Debian root"

    def look(self, series: str | None) -> Availability:
        if series not in debian_root.SUITES:
            return Availability(
                usable=False, sentence=f"only for series {', '.join(debian_root.SUITES)}, when asked for"
            )
        where = debian_root.folder(series)
        if obstacle := debian_root.obstacle(where):
            return Availability(usable=False, sentence=obstacle)
        if version := debian_root.stamped(where):
            return Availability(usable=True, sentence=f"taking {version} from {where}")
        return Availability(
            usable=True, sentence=f"building {series} from Debian {debian_root.SUITES[series]} in {where}"
        )

    def take(self, series: str | None, announce: Announce) -> InstalledSupply:
        root = self.build(series or "", announce)
        for home, version in installation.find(root):
            return InstalledSupply(RabbitInstallation(home, version, f"Debian root {root}", root))
        raise EmbeddedError(f"{root} contains no RabbitMQ. Remove that folder, then try again.")
