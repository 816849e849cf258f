"""RabbitMQ's programs on this machine, installed directly or inside a cached Debian root."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tarry.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Folders that contain `sbin/rabbitmq-server` and `plugins/`: Debian, Fedora, Homebrew, the generic archive.
PLACES = (
    "usr/lib/rabbitmq/lib/rabbitmq_server-*",
    "usr/lib64/rabbitmq/lib/rabbitmq_server-*",
    "opt/homebrew/opt/rabbitmq",
    "usr/local/opt/rabbitmq",
    "opt/rabbitmq*",
)


@dataclass(frozen=True)
class RabbitInstallation:
    """`home` contains sbin/; with `root`, it is inside that folder, which becomes / for the programs."""

    home: Path
    version: str
    source: str
    root: Path | None = None

    def command(self, program: str, *arguments: str, folder: Path) -> list[str]:
        """The command for one of sbin's scripts or Erlang's programs, which sees `folder` under the same path."""
        path = str(Path("/") / (self.home / "sbin" / program).relative_to(self.root or "/"))
        if not (self.home / "sbin" / program).exists():
            path = self._erlang_program(program)
        if self.root is None:
            return [path, *arguments]
        temporary = Path(tempfile.gettempdir())  # mounted as a whole, so that no empty folders accumulate in the root
        return inside_root(self.root, [path, *arguments], [temporary if temporary in folder.parents else folder])

    def _erlang_program(self, program: str) -> str:
        if self.root is not None:
            return f"/usr/bin/{program}"
        if found := shutil.which(program):
            return found
        for place in ("/usr/lib/erlang/erts-*/bin", "/opt/homebrew/opt/erlang/lib/erlang/erts-*/bin"):
            for path in Path("/").glob(place.removeprefix("/") + f"/{program}"):
                return str(path)
        raise EmbeddedError(
            f"RabbitMQ is in {self.home}, but Erlang's {program} is not on PATH. Add its folder to PATH."
        )


def find(root: Path = Path("/")) -> Iterable[tuple[Path, str]]:
    """Every (home, version) below that root; programs found on PATH first."""
    on_path = shutil.which("rabbitmq-server") if root == Path("/") else None
    homes = [Path(on_path).resolve().parent.parent] if on_path else []
    homes += [home for place in PLACES for home in sorted(root.glob(place), reverse=True)]
    for home in dict.fromkeys(homes):
        version = version_of(home)
        if version and (home / "sbin" / "rabbitmq-server").exists():
            yield home, version


def version_of(home: Path) -> str | None:
    """The version from the broker's plugin folder; the name of the package's folder differs between systems."""
    for plugin in (home / "plugins").glob("rabbit-*"):
        if found := re.fullmatch(r"rabbit-(\d+\.\d+\.\d+[^/]*?)(\.ez)?", plugin.name):
            return found.group(1)
    return None


def in_series(version: str, series: str | None) -> bool:
    return series is None or version == series or version.startswith(f"{series}.")


def inside_root(
    root: Path, command: Sequence[str], folders: Sequence[Path] = (), *, privileged: bool | None = None
) -> list[str]:
    """The command to run with `root` as /, with the machine's /proc, /dev and /sys and the given folders in it.

    The mounts are in a separate namespace and vanish with the last process in it. Every step is an exec, so the process
    that was started is the process that runs the command. Without privileges, a user namespace makes the current user
    root of its own files: enough to run a broker, not enough to install one.
    """
    if sys.platform != "linux":
        raise EmbeddedError("A cached Debian root only runs on Linux. Use Docker here.")
    script = (
        'root=$1; shift; for folder in /proc /dev /sys; do mount --rbind "$folder" "$root$folder"; done; '
        'while [ "$1" != -- ]; do mkdir -p "$root$1"; mount --rbind "$1" "$root$1"; shift; done; shift; '
        'exec chroot "$root" "$@"'
    )
    if privileged is None:
        privileged = os.geteuid() == 0
    return [
        *unshare(privileged=privileged),
        "/bin/sh",
        "-ec",
        script,
        "sh",
        str(root),
        *map(str, folders),
        "--",
        *command,
    ]


def unshare(*, privileged: bool) -> list[str]:
    program = shutil.which("unshare") or "/usr/bin/unshare"
    return [
        program,
        *(() if privileged else ("--user", "--map-root-user")),
        "--mount",
        "--propagation",
        "private",
        "--",
    ]


def can_enter_roots() -> bool:
    """Some containers and hardened machines do not allow new namespaces."""
    try:
        check = subprocess.run([*unshare(privileged=os.geteuid() == 0), "true"], capture_output=True, check=False)
    except OSError:
        return False
    return check.returncode == 0
