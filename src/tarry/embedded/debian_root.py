"""A folder with a small Debian and a newer RabbitMQ in it, for machines that have neither that version nor Docker.

Built once with debootstrap, complete before it gets its name, and marked with a stamp that holds the version.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import sys
from typing import TYPE_CHECKING

from tarry.embedded import installation, package, privilege
from tarry.embedded.folders import cache_folder
from tarry.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# The Debian suite that carries each series.
SUITES = {"4.3": "forky"}
STAMP = "tarry-rabbitmq-version"
# An older debootstrap does not know the names of younger suites, but they are all made like sid.
SCRIPT = "/usr/share/debootstrap/scripts/sid"


def folder(series: str) -> Path:
    return cache_folder() / f"rabbitmq-{series}"


def stamped(root: Path) -> str | None:
    try:
        return (root / STAMP).read_text().strip() or None
    except OSError:
        return None


def obstacle(root: Path) -> str | None:
    """Why it cannot be used or built here, if so."""
    if sys.platform != "linux":
        return "needs Linux"
    if not installation.can_enter_roots():
        return "this machine allows no mount namespaces (`unshare --mount`)"
    if stamped(root):
        return None
    if shutil.which("apt-get") is None:
        return "needs a Debian-like Linux"
    if privilege.prefix() is None:
        return "needs root or `sudo -n`, once"
    return None


def ensure(series: str, announce: Callable[[str], None]) -> Path:
    root = folder(series)
    if stamped(root):
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    with only_builder(root):
        if not stamped(root):  # somebody else may have built it while we waited
            build(series, root, announce)
    return root


@contextlib.contextmanager
def only_builder(root: Path) -> Iterator[None]:
    with root.with_name(f"{root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(series: str, root: Path, announce: Callable[[str], None]) -> None:
    if shutil.which("debootstrap", path="/usr/sbin:/usr/bin:/sbin:/bin") is None:
        announce("RabbitMQ: installing debootstrap with apt-get")
        package.install_debian_package("debootstrap")
    unfinished = root.with_name(f"{root.name}.building")
    for leftover in (unfinished, root):
        remove(leftover)
    announce(
        f"RabbitMQ: building Debian {SUITES[series]} with RabbitMQ {series} in {root}; this takes a few minutes, once"
    )
    mirror = [url] if (url := mirror_of_this_machine()) else []
    script = [SCRIPT] if mirror else []
    privilege.run(["debootstrap", "--variant=minbase", SUITES[series], str(unfinished), *mirror, *script])
    install_inside(unfinished)
    version = next((version for _, version in installation.find(unfinished)), None)
    if version is None or not installation.in_series(version, series):
        raise EmbeddedError(
            f"Debian {SUITES[series]} now carries RabbitMQ {version}, not {series}. Use Docker for {series}."
        )
    privilege.run(["tee", str(unfinished / STAMP)], stdin=f"{version}\n")
    privilege.run(["mv", str(unfinished), str(root)])


def install_inside(root: Path) -> None:
    privilege.run(["tee", str(root / "usr/sbin/policy-rc.d")], stdin="#!/bin/sh\nexit 101\n")
    privilege.run(["chmod", "0755", str(root / "usr/sbin/policy-rc.d")])
    for file in ("hosts", "resolv.conf"):  # a node that cannot resolve localhost hangs at its start
        privilege.run(["cp", "--dereference", f"/etc/{file}", str(root / "etc" / file)])
    install = ["apt-get", "install", "-y", "--no-install-recommends", "rabbitmq-server"]
    for command in (install, ["apt-get", "clean"]):
        privilege.run(installation.inside_root(root, command, privileged=True))


def remove(root: Path) -> None:
    """Never across a mount: a root somebody mounted /dev into must not take the machine's /dev with it."""
    if root.exists():
        privilege.run(["rm", "-rf", "--one-file-system", str(root)])


def mirror_of_this_machine() -> str | None:
    """Where this machine's apt gets Debian from; None leaves it to debootstrap."""
    with contextlib.suppress(EmbeddedError):
        listed = privilege.run_plain(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"])
        return first_mirror(listed.splitlines())
    return None


def first_mirror(addresses: list[str]) -> str | None:
    return next((url for url in addresses if "debian" in url and "security" not in url), None)
