"""The middleware of the API: authentication, rate limit, timeout and idempotency."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tarry.errors import Code, TarryError
from tarry.operations.action_log import ORIGIN
from tarry.operations.idempotency import IdempotencyKeys
from tarry.web.api.auth import READING, Access, Caller
from tarry.web.api.http_request import HttpReply, HttpRequest, read
from tarry.web.api.idempotency import once
from tarry.web.api.problems import ProblemError, failure, is_internal, problem_of, respond

MOST_CALLERS = 1_000
"""Maximum number of buckets; the least recently used is dropped first."""

BURST_SECONDS = 2
"""Capacity of a bucket, in seconds of its rate."""


class Rates:
    """Requests per second for each caller; 0 means no limit."""

    def __init__(self, per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_second
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """0 if the request may proceed, else the seconds to wait."""
        if not self._rate:
            return 0.0
        now, most = self._clock(), float(self._rate * BURST_SECONDS)
        level, at = self._buckets.pop(caller, (most, now))
        level = min(most, level + (now - at) * self._rate)
        enough = level >= 1
        self._buckets[caller] = (level - 1 if enough else level, now)
        if len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        return 0.0 if enough else (1 - level) / self._rate


log = structlog.get_logger()

PREFIX = "/api/"
MOST_AT_ONCE = 64
"""Maximum number of concurrent requests; the router uses the same event loop and has priority."""

STREAMS = frozenset({f"{PREFIX}v1/events"})
"""Paths whose answers are sent as they come."""

MOST_STREAMS = 32

ACTING = "POST"
"""The method of every action."""

LONGEST_NAME = 100
ALWAYS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


@dataclass(slots=True)
class ApiRules:
    """Settings and state of the middleware."""

    access: Access
    calls: IdempotencyKeys
    rates: Rates
    body_limit: int
    timeout: float
    under_way: set[asyncio.Task[HttpReply]] = field(default_factory=set)
    streams: int = 0
    """Callers that read events now."""

    def count(self, caller: str) -> None:
        """Raises ProblemError if the caller has made too many requests, or if too many are in progress."""
        early = self.rates.take(caller)
        if early:
            wait = str(ceil(early))
            detail = "Too many requests; wait as Retry-After says. API_RATE sets the limit per second."
            raise ProblemError(Code.RATE_LIMITED, detail, {"Retry-After": wait})
        if len(self.under_way) >= MOST_AT_ONCE:
            detail = f"{MOST_AT_ONCE} requests are in progress already; try again in a moment."
            raise ProblemError(Code.OVERLOADED, detail, {"Retry-After": "1"})

    async def in_time(self, method: str, handling: Coroutine[Any, Any, HttpReply], how_to_follow: str) -> HttpReply:
        """An action that takes too long continues: it must not be interrupted halfway."""
        task = asyncio.create_task(handling)
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)
        done, _ = await asyncio.wait([task], timeout=self.timeout)
        if done:
            return task.result()
        detail = f"No answer within {self.timeout:g} seconds."
        if method in READING:
            task.cancel()
        else:
            task.add_done_callback(_ended_late)
            detail += f" The action continues: {how_to_follow}"
        raise ProblemError(Code.TIMEOUT, detail)


class Middleware:
    """ASGI middleware. Every request under /api/ passes it, even if a route declares no dependencies."""

    def __init__(self, app: ASGIApp, rules: ApiRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        if scope["method"] == "GET" and scope["path"] in STREAMS:
            await self._stream(scope, receive, send)
            return
        reply = await self._reply(scope, receive)
        await reply.with_headers(*ALWAYS).send(send)

    async def _reply(self, scope: Scope, receive: Receive) -> HttpReply:
        call = f"{scope['method']} {scope['path']}"
        try:
            caller = self._admit(scope)
            scope.setdefault("state", {})["caller"] = caller
            ORIGIN.set(f"api {(scope.get('client') or ('?',))[0]}")
            request = await read(scope, receive, self._rules.body_limit)
            repeat = "repeat the request with the same Idempotency-Key for its answer."
            reply = await self._rules.in_time(request.method, self._handle(caller, request), repeat)
        except Exception as error:  # noqa: BLE001 - the last resort: the caller gets a problem, the log the details
            return _refused(call, error)
        if request.method not in READING:
            log.info("api", caller=caller.actor(), call=call, status=reply.status)
        return reply

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An answer that is sent as it comes, for as long as the caller stays."""

        async def pass_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *ALWAYS]}
            await send(message)

        try:
            scope.setdefault("state", {})["caller"] = self._admit(scope)
            self._limit_streams()
        except ProblemError as refused:
            await _refused(scope["path"], refused).with_headers(*ALWAYS).send(send)
            return
        self._rules.streams += 1
        try:
            await self._app(scope, receive, pass_on)
        finally:
            self._rules.streams -= 1

    def _limit_streams(self) -> None:
        if self._rules.streams >= MOST_STREAMS:
            detail = f"{MOST_STREAMS} readers of events are connected already; try again later."
            raise ProblemError(Code.OVERLOADED, detail, {"Retry-After": "5"})

    def _admit(self, scope: Scope) -> Caller:
        """Refused callers are limited by address, so that guessing tokens is slow."""
        headers = Headers(scope=scope)
        try:
            caller = self._rules.access.admit(headers, scope["method"])
        except ProblemError as refused:
            address = (scope.get("client") or ("?",))[0]
            self._rules.count(f"@{address}")
            log.warning("api caller refused", address=address, status=refused.problem.status, reason=str(refused))
            raise
        self._rules.count(caller.name)
        return replace(caller, requested_by=_requested_by(headers))

    async def _handle(self, caller: Caller, request: HttpRequest) -> HttpReply:
        async def pass_on() -> HttpReply:
            return await request.pass_to(self._app)

        if request.method != ACTING:
            return await pass_on()
        return await once(self._rules.calls, caller, request, pass_on)


def _ended_late(task: asyncio.Task[HttpReply]) -> None:
    """The caller has its answer already, so the outcome is only logged."""
    error = None if task.cancelled() else task.exception()
    status = None if error or task.cancelled() else task.result().status
    log.warning("api action ended after timeout", status=status, error=str(error) if error else None)


def _refused(call: str, error: Exception) -> HttpReply:
    """Known errors, such as Postgres being unavailable for a key, have a status; others are internal errors."""
    if isinstance(error, ProblemError):
        return HttpReply.from_response(respond(error.problem, error.headers))
    if isinstance(error, TarryError) and not is_internal(error):
        return HttpReply.from_response(respond(problem_of(error)))
    return HttpReply.from_response(respond(failure(call, error, secrets.token_hex(6))))


def _requested_by(headers: Headers) -> str | None:
    """The person who uses the token, from the header."""
    given = headers.get("x-requested-by")
    if given is None:
        return None
    try:
        name = given.strip().encode("latin-1").decode()
    except UnicodeDecodeError:
        name = ""
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        detail = f"X-Requested-By must be one line of 1 to {LONGEST_NAME} characters in UTF-8."
        raise ProblemError(Code.INVALID_REQUEST, detail)
    return name
