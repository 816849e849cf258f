"""Runs the few commands that need root: installing a package, building a Debian root."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tarry.errors import EmbeddedError


def prefix() -> list[str] | None:
    """The prefix that makes a command run as root: nothing, or `sudo -n`; None if neither works."""
    if os.geteuid() == 0:
        return []
    if (
        shutil.which("sudo")
        and subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0
    ):
        return ["sudo", "-n"]
    return None


def run(command: Sequence[str], *, stdin: str | None = None) -> str:
    """Runs the command as root; an error includes the end of the command's output."""
    before = prefix()
    if before is None:
        raise EmbeddedError(f"`{command[0]}` needs root. Run as root, or allow `sudo -n {command[0]}`.")
    # sudo starts with an empty environment
    return run_plain([*before, "env", "DEBIAN_FRONTEND=noninteractive", *command], stdin=stdin)


def run_plain(command: Sequence[str], *, stdin: str | None = None) -> str:
    env = {**os.environ, "LC_ALL": "C.UTF-8", "HOMEBREW_NO_AUTO_UPDATE": "1"}
    done = subprocess.run(
        command,
        input=stdin,
        stdin=None if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=env,
        check=False,
    )
    if done.returncode != 0:
        end = "\n".join(done.stdout.splitlines()[-25:])
        raise EmbeddedError(
            f"`{' '.join(command)}` failed with exit code {done.returncode}. The end of its output:\n{end}"
        )
    return done.stdout


POLICY = Path("/usr/sbin/policy-rc.d")


@dataclass(frozen=True)
class Manager:
    """A package manager: its name, what it would install, and how it installs."""

    program: str
    needs_root: bool
    candidate: Callable[[], str | None]
    install: Callable[[], None]

    @property
    def present(self) -> bool:
        return shutil.which(self.program) is not None

    @property
    def allowed(self) -> bool:
        return not self.needs_root or prefix() is not None


def install_debian_package(name: str) -> None:
    """Installs the package; if that fails, fetches the package lists and tries again.

    The lists may be missing or outdated, as in a new container.
    """
    install = ["apt-get", "install", "-y", "--no-install-recommends", name]
    with services_stay_down():
        try:
            run(install)
        except EmbeddedError:
            run(["apt-get", "update"])
            run(install)


@contextlib.contextmanager
def services_stay_down() -> Iterator[None]:
    """Keeps Debian from starting a service when its package is installed: policy-rc.d returns 101.

    An existing policy-rc.d is restored.
    """
    saved = POLICY.with_name("policy-rc.d.before-tarry")
    existed = POLICY.exists() or POLICY.is_symlink()
    if existed:
        run(["mv", str(POLICY), str(saved)])
    run(["tee", str(POLICY)], stdin="#!/bin/sh\nexit 101\n")
    run(["chmod", "0755", str(POLICY)])
    try:
        yield
    finally:
        run(["mv", str(saved), str(POLICY)] if existed else ["rm", "-f", str(POLICY)])


def stay_down_after_boot() -> None:
    if Path("/run/systemd/system").is_dir():
        run(["systemctl", "disable", "rabbitmq-server.service"])


def install_with_apt() -> None:
    install_debian_package("rabbitmq-server")
    stay_down_after_boot()


def apt_candidate() -> str | None:
    output = run_plain(["apt-cache", "policy", "rabbitmq-server"])
    return upstream_version(output, r"Candidate: (?:\d+:)?([\d.]+)")


def dnf_candidate() -> str | None:
    with contextlib.suppress(EmbeddedError):
        output = run_plain(["dnf", "-q", "repoquery", "--latest-limit=1", "--qf=%{version}\n", "rabbitmq-server"])
        return upstream_version(output, r"([\d.]+)")
    return None


def brew_candidate() -> str | None:
    with contextlib.suppress(EmbeddedError):
        return upstream_version(run_plain(["brew", "info", "rabbitmq"]), r"stable ([\d.]+)")
    return None


def upstream_version(output: str, pattern: str) -> str | None:
    found = re.search(pattern, output)
    return found.group(1) if found else None


def install_with_dnf() -> None:
    run(["dnf", "install", "-y", "rabbitmq-server"])


def install_with_brew() -> None:
    run_plain(["brew", "install", "rabbitmq"])


MANAGERS = (
    Manager("apt-get", True, apt_candidate, install_with_apt),
    Manager("dnf", True, dnf_candidate, install_with_dnf),
    Manager("brew", False, brew_candidate, install_with_brew),
)
