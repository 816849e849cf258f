"""Installing the distribution's own RabbitMQ package, and leaving its service alone: we only want the programs."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tarry.embedded import privilege
from tarry.errors import EmbeddedError

POLICY = Path("/usr/sbin/policy-rc.d")


@dataclass(frozen=True)
class Manager:
    """A package manager: how it is called, what it would install, how it installs."""

    program: str
    needs_root: bool
    candidate: Callable[[], str | None]
    install: Callable[[], None]

    @property
    def present(self) -> bool:
        return shutil.which(self.program) is not None

    @property
    def allowed(self) -> bool:
        return not self.needs_root or privilege.prefix() is not None


def install_debian_package(name: str) -> None:
    """Package lists may be missing or stale, as in a fresh container: then they are fetched and it is tried anew."""
    install = ["apt-get", "install", "-y", "--no-install-recommends", name]
    with services_stay_down():
        try:
            privilege.run(install)
        except EmbeddedError:
            privilege.run(["apt-get", "update"])
            privilege.run(install)


@contextlib.contextmanager
def services_stay_down() -> Iterator[None]:
    """Debian starts a service when its package is installed, unless policy-rc.d says 101. What was there returns."""
    saved = POLICY.with_name("policy-rc.d.before-tarry")
    existed = POLICY.exists() or POLICY.is_symlink()
    if existed:
        privilege.run(["mv", str(POLICY), str(saved)])
    privilege.run(["tee", str(POLICY)], stdin="#!/bin/sh\nexit 101\n")
    privilege.run(["chmod", "0755", str(POLICY)])
    try:
        yield
    finally:
        privilege.run(["mv", str(saved), str(POLICY)] if existed else ["rm", "-f", str(POLICY)])


def stay_down_after_boot() -> None:
    if Path("/run/systemd/system").is_dir():
        privilege.run(["systemctl", "disable", "rabbitmq-server.service"])


def install_with_apt() -> None:
    install_debian_package("rabbitmq-server")
    stay_down_after_boot()


def apt_candidate() -> str | None:
    said = privilege.run_plain(["apt-cache", "policy", "rabbitmq-server"])
    return upstream_version(said, r"Candidate: (?:\d+:)?([\d.]+)")


def dnf_candidate() -> str | None:
    with contextlib.suppress(EmbeddedError):
        said = privilege.run_plain(
            ["dnf", "-q", "repoquery", "--latest-limit=1", "--qf=%{version}\n", "rabbitmq-server"]
        )
        return upstream_version(said, r"([\d.]+)")
    return None


def brew_candidate() -> str | None:
    with contextlib.suppress(EmbeddedError):
        return upstream_version(privilege.run_plain(["brew", "info", "rabbitmq"]), r"stable ([\d.]+)")
    return None


def upstream_version(said: str, pattern: str) -> str | None:
    found = re.search(pattern, said)
    return found.group(1) if found else None


def install_with_dnf() -> None:
    privilege.run(["dnf", "install", "-y", "rabbitmq-server"])


def install_with_brew() -> None:
    privilege.run_plain(["brew", "install", "rabbitmq"])


MANAGERS = (
    Manager("apt-get", True, apt_candidate, install_with_apt),
    Manager("dnf", True, dnf_candidate, install_with_dnf),
    Manager("brew", False, brew_candidate, install_with_brew),
)
