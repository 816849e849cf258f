"""The attach commands, run in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from tarry.cli.attach import register
from tarry.cli.output import Commands

Run = Callable[..., Any]


def runner(folder: Path, amqp_url: str, management_url: str) -> Run:
    (folder / "tarry.toml").write_text("[ladder]\nlevels = 2\n")
    (folder / "policies").mkdir()
    (folder / "policies" / "all.toml").write_text('[[policy]]\nname = "default"\nschedule = ["1s"]\nmax_retries = 1\n')
    app = typer.Typer(cls=Commands)
    register(app)
    environment = {
        "RABBITMQ_URL": amqp_url,
        "RABBITMQ_MANAGEMENT_URL": management_url,
        "TARRY_TOPOLOGY": str(folder),
    }
    return lambda *arguments: CliRunner().invoke(app, list(arguments), env=environment)
