"""Someone at a terminal: commands straight on broker and Postgres, or through the API of a service."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner, Result

from tarry.cli.main import app
from tests.integration.api.calling import OPERATE, Installation


@dataclass
class Terminal:
    """Someone at a terminal."""

    there: Installation
    through_the_api: bool

    def run(self, *words: str, given: str | None = None) -> Result:
        where = {"TARRY_API": self.there.url, "TARRY_TOKEN": OPERATE} if self.through_the_api else self._direct
        return CliRunner().invoke(app, words, input=given, env=where | {"COLUMNS": "200"})

    @property
    def _direct(self) -> dict[str, str]:
        return self.there.place.environment | {"TARRY_API": "", "TARRY_TOKEN": ""}

    def json(self, *words: str) -> Any:
        result = self.run(*words, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def known(self, queue: str) -> str:
        """A destination that has something waiting."""
        self.there.schedule(queue, f"known-{queue}-{self.through_the_api}")
        return queue
