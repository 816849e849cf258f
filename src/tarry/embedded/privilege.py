"""Running the few commands that need root: installing a package, building a Debian root."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from tarry.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Sequence


def prefix() -> list[str] | None:
    """What to put before a command so that it runs as root: nothing, `sudo -n`, or None when neither works."""
    if os.geteuid() == 0:
        return []
    if (
        shutil.which("sudo")
        and subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0
    ):
        return ["sudo", "-n"]
    return None


def run(command: Sequence[str], *, stdin: str | None = None) -> str:
    """Run as root; a failure carries the end of what the command said."""
    before = prefix()
    if before is None:
        raise EmbeddedError(f"`{command[0]}` needs root. Run as root, or allow `sudo -n {command[0]}`.")
    # sudo starts from an empty environment
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
            f"`{' '.join(command)}` failed with exit code {done.returncode}. The end of what it said:\n{end}"
        )
    return done.stdout
