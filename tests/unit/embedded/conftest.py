"""A management API that knows its version and its listeners: enough to pass for a broker."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        listeners = [{"protocol": "amqp", "port": 5672, "node": "fake@localhost"}]
        body = json.dumps({"rabbitmq_version": "4.3.6", "listeners": listeners}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as the base class has it
        pass


@contextlib.contextmanager
def api_on(port: int) -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", port), Answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def fake_api() -> Iterator[Callable[[int], int]]:
    """Call it with a port, or with 0 for any; it returns the port."""
    with contextlib.ExitStack() as stack:
        yield lambda port: stack.enter_context(api_on(port))
