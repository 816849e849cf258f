"""A complete request and its complete reply, between the middleware and the application."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tarry.errors import Code
from tarry.web.api.problems import ProblemError

BODY_WITHIN = 10.0
"""Seconds for a caller to send the body."""

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A reply in memory; lists and payloads are limited in size."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    @classmethod
    def of(cls, status: int, media_type: str, body: bytes, headers: Mapping[str, str] | None = None) -> HttpReply:
        return cls.from_response(Response(body, status, headers=headers, media_type=media_type))

    @classmethod
    def from_response(cls, response: Response) -> HttpReply:
        return cls(response.status_code, tuple(response.raw_headers), bytes(response.body))

    @property
    def media_type(self) -> str:
        return Headers(raw=list(self.headers)).get("content-type", "")

    def with_headers(self, *more: tuple[bytes, bytes]) -> HttpReply:
        return replace(self, headers=(*self.headers, *more))

    async def send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": list(self.headers)})
        await send({"type": "http.response.body", "body": self.body})


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request whose body has been read."""

    scope: Scope
    headers: Headers
    body: bytes

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def path(self) -> str:
        return str(self.scope["path"])

    @property
    def query(self) -> str:
        return bytes(self.scope.get("query_string", b"")).decode("latin-1")

    async def pass_to(self, app: ASGIApp) -> HttpReply:
        """The application's reply."""
        given = [self.body]
        sent: list[Message] = []

        async def receive() -> Message:
            if given:
                return {"type": "http.request", "body": given.pop(), "more_body": False}
            await asyncio.get_running_loop().create_future()  # a disconnect of the caller is ignored
            raise AssertionError

        async def send(message: Message) -> None:
            sent.append(message)

        await app(self.scope, receive, send)
        head = sent[0]
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return HttpReply(head["status"], tuple((bytes(name), bytes(value)) for name, value in head["headers"]), body)


async def read(scope: Scope, receive: Receive, limit: int, media_type: str = JSON) -> HttpRequest:
    """The complete request. Raises ProblemError if it is too large, too slow or of another media type."""
    headers = Headers(scope=scope)
    body = await read_body(headers, receive, limit)
    if body and headers.get("content-type", "").partition(";")[0].strip().lower() != media_type:
        raise ProblemError(Code.UNSUPPORTED_MEDIA_TYPE, f"Send the body as {media_type}, with that Content-Type.")
    return HttpRequest(scope, headers, body)


async def read_body(headers: Mapping[str, str], receive: Receive, limit: int) -> bytes:
    """The complete body. Raises ProblemError if it is too large or too slow."""
    length = headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length) > limit:
        raise too_large(limit)
    try:
        async with asyncio.timeout(BODY_WITHIN):
            return await _body(receive, limit)
    except TimeoutError:
        detail = f"The body of the request did not arrive within {BODY_WITHIN:g} seconds."
        raise ProblemError(Code.BODY_TIMEOUT, detail) from None


async def _body(receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ProblemError(Code.INVALID_REQUEST, "The connection closed before the end of the body.")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise too_large(limit)
        if not message.get("more_body", False):
            return b"".join(parts)


def too_large(limit: int) -> ProblemError:
    detail = f"The request has more than {limit:,} bytes, the most that is accepted here (API_BODY_LIMIT in the API)."
    return ProblemError(Code.BODY_TOO_LARGE, detail)
