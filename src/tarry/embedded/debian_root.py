"""A folder with a small Debian and a newer RabbitMQ, for machines that have neither that version nor Docker.

Built once with debootstrap, renamed to its final name only when complete, and marked with a stamp that contains the
version.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import sys
from typing import TYPE_CHECKING

from tarry.embedded import installation, package
from tarry.embedded.folders import cache_folder
from tarry.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# The Debian suite that has each series.
SUITES = {"4.3": "forky"}
STAMP = "tarry-rabbitmq-version"
# An older debootstrap does not know the names of newer suites, but all of them are built like sid.
SCRIPT = "/usr/share/debootstrap/scripts/sid"


def folder(series: str) -> Path:
    return cache_folder() / f"rabbitmq-{series}"


def stamped(root: Path) -> str | None:
    try:
        return (root / STAMP).read_text().strip() or None
    except OSError:
        return None


def obstacle(root: Path) -> str | None:
    """The reason why it cannot be used or built here, or None."""
    if sys.platform != "linux":
        return "needs Linux"
    if not installation.can_enter_roots():
        return "this machine allows no mount namespaces (`unshare --mount`)"
    if stamped(root):
        return None
    if shutil.which("apt-get") is None:
        return "needs a Debian-like Linux"
    if package.prefix() is None:
        return "needs root or `sudo -n`, once"
    return None


def ensure(series: str, announce: Callable[[str], None]) -> Path:
    root = folder(series)
    if stamped(root):
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    with only_builder(root):
        if not stamped(root):  # another process may have built it during the wait
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
    package.run(["debootstrap", "--variant=minbase", SUITES[series], str(unfinished), *mirror, *script])
    install_inside(unfinished)
    version = next((version for _, version in installation.find(unfinished)), None)
    if version is None or not installation.in_series(version, series):
        raise EmbeddedError(
            f"Debian {SUITES[series]} now carries RabbitMQ {version}, not {series}. Use Docker for {series}."
        )
    package.run(["tee", str(unfinished / STAMP)], stdin=f"{version}\n")
    package.run(["mv", str(unfinished), str(root)])


def install_inside(root: Path) -> None:
    package.run(["tee", str(root / "usr/sbin/policy-rc.d")], stdin="#!/bin/sh\nexit 101\n")
    package.run(["chmod", "0755", str(root / "usr/sbin/policy-rc.d")])
    for file in ("hosts", "resolv.conf"):  # a node that cannot resolve localhost hangs at its start
        package.run(["cp", "--dereference", f"/etc/{file}", str(root / "etc" / file)])
    install = ["apt-get", "install", "-y", "--no-install-recommends", "rabbitmq-server"]
    for command in (install, ["apt-get", "clean"]):
        package.run(installation.inside_root(root, command, privileged=True))


def remove(root: Path) -> None:
    """Never crosses a mount: if /dev is mounted into the root, the machine's /dev must not be deleted with it."""
    if root.exists():
        package.run(["rm", "-rf", "--one-file-system", str(root)])


def mirror_of_this_machine() -> str | None:
    """The mirror that this machine's apt uses; None leaves the choice to debootstrap."""
    with contextlib.suppress(EmbeddedError):
        listed = package.run_plain(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"])
        return first_mirror(listed.splitlines())
    return None


def first_mirror(addresses: list[str]) -> str | None:
    return next((url for url in addresses if "debian" in url and "security" not in url), None)
