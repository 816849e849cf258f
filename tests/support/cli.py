"""The `tarry` command: in this process, or as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from typer.testing import CliRunner, Result

from tarry.cli.start import made, wanted

TARRY = [sys.executable, "-m", "tarry"]
WIDE = {"COLUMNS": "200"}
"""A terminal on which no table is cut."""


def run_cli(
    arguments: Sequence[str], environment: Mapping[str, str | None] | None = None, *, stdin: str | None = None
) -> Result:
    """Runs `tarry ARGUMENTS` in this process, which is ten times as fast. An unexpected exception is raised."""
    words = list(arguments)
    done = CliRunner().invoke(made(wanted(words)), words, env=environment, input=stdin)
    if isinstance(done.exception, Exception):
        raise done.exception
    return done


def run_process(
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    timeout: float = 120,
    command: Sequence[str] = TARRY,
) -> subprocess.CompletedProcess[str]:
    """Runs `tarry ARGUMENTS` as a process with an empty standard input; `environment` is added to our own."""
    return subprocess.run(
        [*command, *arguments],
        env=os.environ | dict(environment or {}),
        input="",
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
