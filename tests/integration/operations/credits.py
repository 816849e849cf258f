"""A credit check for tests: an HTTP server that answers by the name of the queue."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Credits:
    """What was asked, and where."""

    port: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def settings(self) -> dict[str, str]:
        url = f"http://user:secret@127.0.0.1:{self.port}/may-retry"
        return {"MANUAL_RETRY_CHECK_URL": url, "MANUAL_RETRY_CHECK_TIMEOUT_S": "8"}

    def about(self, retry: str) -> list[dict[str, Any]]:
        return [one for one in self.asked if one["retry_id"] == retry]


@contextlib.contextmanager
def credit_check() -> Iterator[Credits]:
    """`*.poor` has 2.5 of 5 credits, `*.mute` gets a bare 402, `*.odd` a 500, `*.hangs` no answer, all others a 204."""
    made = Credits()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.asked.append(body | {"authorization": self.headers.get("Authorization")})
            queue = body["queue"]
            if queue.endswith(".hangs"):
                made.over.wait(60)
            status = 402 if queue.endswith((".poor", ".mute")) else 500 if queue.endswith(".odd") else 204
            answer = b'{"required": 5, "available": 2.5}' if queue.endswith(".poor") else b""
            with contextlib.suppress(OSError):  # the caller of one that hangs is gone
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made.over.set()
            server.shutdown()
            thread.join(30)
