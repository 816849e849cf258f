"""An endpoint for webhooks: an HTTP server that keeps what it gets, and verifies it with the reference library."""

from __future__ import annotations

import base64
import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pika
from standardwebhooks import Webhook as ReferenceWebhook

from tarry.events.cloudevent import Event

SECRET = "whsec_" + base64.b64encode(b"a secret of the tests, 32 bytes!").decode()
OTHER_SECRET = "whsec_" + base64.b64encode(b"another secret of these tests...").decode()


def exhausted_event(queue: str) -> Event:
    return Event(
        id="5f0c8a9e/1",
        type="tarry.retry.exhausted",
        source="/tarry/%2F/retry",
        subject="5f0c8a9e",
        time=datetime.now(UTC),
        sequence="0000001.2.0000000000000000001",
        state="in_review",
        data={"queue": queue},
    )


@dataclass
class Received:
    """One request, and the status of its answer, once it has one."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int | None = None

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def verified(self, secret: str = SECRET) -> Any:
        """The event; raises if the signature is wrong."""
        return ReferenceWebhook(secret).verify(self.body, self.headers)


Answer = Callable[["Handler"], None]
"""Writes an answer."""


def status(code: int, body: bytes = b"", **headers: str) -> Answer:
    def answer(handler: Handler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        with contextlib.suppress(OSError):
            handler.wfile.write(body)

    return answer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        receiver: Receiver = self.server.receiver  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.request_read = Received(self.path, headers, body)
        with receiver.lock:
            receiver.received.append(self.request_read)
        receiver.answers.get(self.path, status(204))(self)

    def send_response(self, code: int, message: str | None = None) -> None:
        self.request_read.status = code
        super().send_response(code, message)

    def log_message(self, *_: object) -> None:
        """Silent."""


@dataclass
class Receiver:
    """The endpoint. It answers 204, unless a path has another answer."""

    port: int
    received: list[Received] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def at(self, path: str) -> list[Received]:
        with self.lock:
            return [one for one in self.received if one.path == path]

    def ids(self, path: str) -> list[str]:
        return [one.id for one in self.at(path)]


@contextlib.contextmanager
def receiving(port: int = 0, *, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    made = server.receiver = Receiver(server.server_port)  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="receiver")
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def properties_of(event: Event) -> pika.BasicProperties:
    """As the service publishes it."""
    headers = {f"cloudEvents:{name}": text for name, text in event.attributes().items()}
    return pika.BasicProperties(
        content_type="application/json", delivery_mode=2, message_id=event.id, headers=headers, type=event.type
    )
