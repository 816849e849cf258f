"""The service of the demo or of `tarry up`, where another process takes its port in the last moment."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tarry.demo import stage
from tarry.demo.stage import StageOptions
from tarry.embedded import ports
from tarry.errors import StartupError
from tests.support.spaces import Vhost

pytestmark = pytest.mark.one_series


class AnotherService(BaseHTTPRequestHandler):
    """Answers as a service of tarry that is ready."""

    def do_GET(self) -> None:
        body = json.dumps({"status": "ready", "reasons": [], "postgres": "ok", "process": 1}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Nothing: the test's output stays readable."""


@pytest.fixture
def taken() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), AnotherService)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def test_stage_moves_to_another_port_if_its_own_is_taken(
    taken: int, vhost: Vhost, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = open_folder / "data"
    data.mkdir()
    (data / stage.FILE).write_text(json.dumps({"HTTP": taken}))
    really = ports.again
    monkeypatch.setattr(ports, "again", lambda before: [taken] if before == [taken] else really(before))
    steps: list[str] = []
    wanted = StageOptions(url=vhost.amqp_url, management_url=vhost.management_url, data_dir=data)
    with stage.stage(wanted, steps.append) as made:
        port = urlsplit(made.http_url).port
        assert port != taken
        made.check()
    assert f"The HTTP port was {taken}, which is in use; it is {port} now." in steps


def test_stage_refuses_a_given_port_that_is_taken(taken: int, vhost: Vhost) -> None:
    wanted = StageOptions(url=vhost.amqp_url, management_url=vhost.management_url, http_port=taken)
    with pytest.raises(StartupError, match=f"Cannot listen on 127.0.0.1:{taken}"), stage.stage(wanted, print):
        pass
