"""Prometheus and its promtool, which `make test` unpacks from the distribution's package."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_for

UNPACKED = Path(__file__).parents[2] / ".tarry" / "prometheus" / "usr" / "bin"


def require(program: str) -> str:
    """The program. Without one, tests are skipped; in CI they fail, unless TARRY_ALLOW_MISSING_PROMETHEUS is set."""
    if found := shutil.which(program) or shutil.which(program, path=str(UNPACKED)):
        return found
    reason = "NO PROMETHEUS: the alerts are not tested. Run `make test`, or install the package prometheus."
    if os.environ.get("CI") and not os.environ.get("TARRY_ALLOW_MISSING_PROMETHEUS"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def promtool(*arguments: object) -> str:
    """What it wrote; it must succeed."""
    done = subprocess.run(
        [require("promtool"), *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class Prometheus:
    """A server of the test's own."""

    port: int

    def query(self, expr: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._get("query?" + urllib.parse.urlencode({"query": expr}))["result"]
        return found

    def alerts(self, state: str) -> set[str]:
        """The names of alerts in this state: `pending` or `firing`."""
        return {one["labels"]["alertname"] for one in self._get("alerts")["alerts"] if one["state"] == state}

    def series(self, selector: str) -> list[dict[str, str]]:
        """The names and labels of all series that match."""
        found: list[dict[str, str]] = self._get("series?" + urllib.parse.urlencode({"match[]": selector}))
        return found

    def metadata(self) -> set[str]:
        """The names of all metrics that were described, also of those without a value."""
        return set(self._get("metadata"))

    def up(self) -> bool:
        try:
            return any(float(one["value"][1]) for one in self.query("up"))
        except OSError:
            return False

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}", timeout=30) as answer:
            return json.load(answer)["data"]


@contextlib.contextmanager
def scraping(ports: Sequence[int], rules: str, folder: Path, every: str = "1s") -> Iterator[Prometheus]:
    """A Prometheus that scrapes services on these ports and evaluates these rules."""
    folder.mkdir(exist_ok=True)
    (folder / "rules.yml").write_text(rules)
    targets = json.dumps([f"127.0.0.1:{port}" for port in ports])
    (folder / "prometheus.yml").write_text(
        f"global: {{scrape_interval: {every}, evaluation_interval: {every}}}\nrule_files: [rules.yml]\n"
        f"scrape_configs: [{{job_name: tarry, static_configs: [{{targets: {targets}}}]}}]\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = (folder / "prometheus.log").open("wb")
    arguments = [
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with log, subprocess.Popen([require("prometheus"), *arguments], stdout=log, stderr=log) as process:
        try:
            made = Prometheus(port)
            wait_for(lambda: made.up() or process.poll() is not None, deadline=120, what="Prometheus to scrape")
            assert process.poll() is None, (folder / "prometheus.log").read_text()[-2000:]
            yield made
        finally:
            process.terminate()
