"""The health check of the image, run as Docker runs it; `make check` runs hadolint on the whole Dockerfile."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def health_check(port: int) -> int:
    """The exit code of the program behind HEALTHCHECK, with this interpreter instead of the image's."""
    found = re.search(r"^HEALTHCHECK .*CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    program, *arguments = json.loads(found[1])
    assert program == "python"
    return subprocess.run(
        [sys.executable, *arguments], env={"HTTP_PORT": str(port)}, stderr=subprocess.DEVNULL, check=False
    ).returncode


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_the_health_check_passes_while_the_service_is_alive(port: int) -> None:
    assert health_check(port) == 0


def test_the_image_has_what_the_service_needs_for_traces() -> None:
    """As docs/traces.md says, and as the bill of materials lists."""
    assert "--extra server --extra otel" in (ROOT / "Dockerfile").read_text()
    assert 'IMAGE = ("--extra", "server", "--extra", "otel")' in (ROOT / ".ci" / "release.py").read_text()


def test_the_health_check_fails_without_an_answer() -> None:
    with HTTPServer(("127.0.0.1", 0), Answers) as closed:
        free = closed.server_port
    assert health_check(free) != 0
