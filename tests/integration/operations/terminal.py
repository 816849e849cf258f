"""An operator's terminal: commands that use broker and Postgres directly, or the API of a service."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from typer.testing import Result

from tests.support.api import OPERATE, ApiInstallation
from tests.support.cli import WIDE, run_cli


@dataclass
class Terminal:
    """Runs commands with the settings of one installation."""

    api: ApiInstallation
    remote: bool
    """Whether the commands use the API."""

    def run(self, *words: str, stdin: str | None = None) -> Result:
        remote = {"TARRY_API": self.api.url, "TARRY_TOKEN": OPERATE}
        return run_cli(words, (remote if self.remote else self._direct) | WIDE, stdin=stdin)

    @property
    def _direct(self) -> dict[str, str]:
        return self.api.installation.environment | {"TARRY_API": "", "TARRY_TOKEN": ""}

    def json(self, *words: str) -> Any:
        result = self.run(*words, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def known(self, queue: str) -> str:
        """Makes the queue a known destination: a retry of it is waiting."""
        self.api.schedule(queue, f"known-{queue}-{self.remote}")
        return queue
