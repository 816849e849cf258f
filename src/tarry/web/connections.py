"""Limits of connections: time for a request, idle time, and their number.

uvicorn closes a connection that is idle after an answer. It has no limit for one that sends nothing, or a request byte
by byte, and none for their number: a few thousand of them would use up the file descriptors of the router.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tarry.errors import Code
from tarry.web.api.problems import make_problem, respond

COMING = frozenset({h11.IDLE, h11.SEND_BODY})
"""States of a client that has not sent its complete request."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of every connection."""

    request: float = 20.0
    """Seconds for a request, from its first byte to the last of its body."""
    idle: float = 5.0
    """Seconds between an answer and the next request."""
    connections: int = 512


class LimitedProtocol(H11Protocol):
    """One connection."""

    limits: ClassVar[ConnectionLimits] = ConnectionLimits()

    _deadline: asyncio.TimerHandle | None = None
    _received = False
    waiting_since: float | None = None
    """Since when it has no complete request in progress; None while it has one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self.waiting_since = self.loop.time()
        self._start_deadline()
        if len(self.connections) > self.limits.connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received = True
        self._start_deadline()
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state not in COMING:
            self._stop_deadline()
            self.waiting_since = None

    def on_response_complete(self) -> None:
        self.waiting_since = self.loop.time()
        super().on_response_complete()

    def _make_room(self) -> None:
        """Closes the longest idle connection, so that health checks succeed while a client keeps many open."""
        others: list[Any] = [one for one in self.connections if one is not self]
        waiting = [one for one in others if getattr(one, "waiting_since", None) is not None]
        if waiting:
            longest: LimitedProtocol = min(waiting, key=lambda one: one.waiting_since)
            longest.waiting_since = None
            longest.transport.abort()
        else:
            self._refuse(Code.OVERLOADED, "All connections are in use; try again in a moment.")

    def _start_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.limits.request, self._on_deadline)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        answered = self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}
        if not self._received or answered or self.transport.is_closing():
            self.transport.abort()
            return
        seconds = f"{self.limits.request:g} seconds"
        self._refuse(Code.BODY_TIMEOUT, f"The request was not complete within {seconds}.")

    def _refuse(self, code: Code, detail: str) -> None:
        """Answers an incomplete request and closes the connection."""
        answer = respond(make_problem(code, detail), {"connection": "close", "retry-after": "1"})
        status = HTTPStatus(answer.status_code)
        lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
        lines += [name + b": " + value for name, value in answer.raw_headers]
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + bytes(answer.body))
        self.transport.close()


def limited(limits: ConnectionLimits) -> type[LimitedProtocol]:
    """The protocol class with these limits, for uvicorn."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})
