"""An eligibility endpoint for tests: an HTTP server that skips some values, or misbehaves as it is told to."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Endpoint:
    """What it was asked, and how it answers."""

    port: int = 0
    inactive: set[str] = field(default_factory=set)
    asked: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    status: int = 200
    body: bytes | None = None
    """Instead of an answer."""
    hangs: bool = False
    hangs_up: int = 0
    """How many of the next requests end without an answer."""
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/eligible"

    @property
    def values(self) -> list[str]:
        """Every value it was asked about, in order."""
        return [value for one in self.asked for value in one["values"]]

    def answer(self, values: list[str]) -> bytes:
        if self.body is not None:
            return self.body
        return json.dumps(
            {"skip": {one: f"device {one} is inactive" for one in values if one in self.inactive}}
        ).encode()


@contextlib.contextmanager
def eligibility_endpoint() -> Iterator[Endpoint]:
    made = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.asked.append(question)
            made.paths.append(self.path)
            if made.hangs_up > 0:
                made.hangs_up -= 1
                self.close_connection = True
                return
            if made.hangs:
                made.over.wait(60)
            answer = made.answer(question["values"])
            with contextlib.suppress(OSError):  # the caller of one that hangs is gone
                self.send_response(made.status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A caller that has gone is not worth a line."""

    with Server(("127.0.0.1", 0), Handler) as server:
        made.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made.over.set()
            server.shutdown()
            thread.join(30)
