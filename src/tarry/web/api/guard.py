"""What every request of the API passes, in this order: who is it, how often, how large, once only, in time."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from math import ceil

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tarry.control.calls import Calls
from tarry.errors import TarryError
from tarry.web.api.auth import READING, Access, Caller
from tarry.web.api.exchange import Exchange, Reply, read
from tarry.web.api.idempotency import once
from tarry.web.api.limits import Rates
from tarry.web.api.problems import ProblemError, failure, make_problem, respond, status_of

log = structlog.get_logger()

PREFIX = "/api/"
MOST_AT_ONCE = 64
"""Requests under way; the router has the same loop, and comes first."""

ACTING = "POST"
"""The method of every action."""

LONGEST_NAME = 100
ALWAYS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


@dataclass(slots=True)
class Rules:
    """What the guard goes by."""

    access: Access
    calls: Calls
    rates: Rates
    body_limit: int
    timeout: float
    under_way: set[asyncio.Task[Reply]] = field(default_factory=set)


class Guard:
    """ASGI middleware. Nothing under /api/ is reached without it, whatever a route forgets to ask for."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        reply = await self._reply(scope, receive)
        await reply.with_headers(*ALWAYS).send(send)

    async def _reply(self, scope: Scope, receive: Receive) -> Reply:
        call = f"{scope['method']} {scope['path']}"
        try:
            caller = self._admit(scope)
            scope.setdefault("state", {})["caller"] = caller
            exchange = await read(scope, receive, self._rules.body_limit)
            reply = await self._in_time(caller, exchange)
        except Exception as error:  # noqa: BLE001 - the last resort: the caller is told, the log has it all
            return _refused(call, error)
        if exchange.method not in READING:
            log.info("api", caller=caller.actor(), call=call, status=reply.status)
        return reply

    def _admit(self, scope: Scope) -> Caller:
        """A stranger is counted by address: guessing tokens is slow."""
        headers = Headers(scope=scope)
        try:
            caller = self._rules.access.admit(headers, scope["method"])
        except ProblemError as refused:
            address = (scope.get("client") or ("?",))[0]
            self._count(f"@{address}")
            log.warning("a caller was not let in", address=address, status=refused.problem.status, reason=str(refused))
            raise
        self._count(caller.name)
        return replace(caller, requested_by=_requested_by(headers))

    def _count(self, caller: str) -> None:
        early = self._rules.rates.take(caller)
        if early:
            wait = str(ceil(early))
            said = "Too many requests; wait as Retry-After says. API_RATE sets how many a second there may be."
            raise ProblemError(HTTPStatus.TOO_MANY_REQUESTS, said, {"Retry-After": wait})
        if len(self._rules.under_way) >= MOST_AT_ONCE:
            said = f"{MOST_AT_ONCE} requests are under way already; try again in a moment."
            raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, said, {"Retry-After": "1"})

    async def _in_time(self, caller: Caller, exchange: Exchange) -> Reply:
        """An action that takes too long goes on: to be cut off in the middle is the worst of ends."""
        task = asyncio.create_task(self._handle(caller, exchange))
        self._rules.under_way.add(task)
        task.add_done_callback(self._rules.under_way.discard)
        done, _ = await asyncio.wait([task], timeout=self._rules.timeout)
        if done:
            return task.result()
        said = f"No answer within {self._rules.timeout:g} seconds."
        if exchange.method in READING:
            task.cancel()
        else:
            task.add_done_callback(_ended_late)
            said += " The action goes on: ask again with the same Idempotency-Key for its answer."
        raise ProblemError(HTTPStatus.GATEWAY_TIMEOUT, said)

    async def _handle(self, caller: Caller, exchange: Exchange) -> Reply:
        async def pass_on() -> Reply:
            return await exchange.pass_to(self._app)

        if exchange.method != ACTING:
            return await pass_on()
        return await once(self._rules.calls, caller, exchange, pass_on)


def _ended_late(task: asyncio.Task[Reply]) -> None:
    """Nobody waits for it any more: the log is the only one to tell."""
    error = None if task.cancelled() else task.exception()
    status = None if error or task.cancelled() else task.result().status
    log.warning("an action ended after its caller was answered", status=status, error=str(error) if error else None)


def _refused(call: str, error: Exception) -> Reply:
    """Ended on purpose, or because Postgres is away when a key is looked up; all else nobody foresaw."""
    if isinstance(error, ProblemError):
        return Reply.from_response(respond(error.problem, error.headers))
    if isinstance(error, TarryError) and (status := status_of(error)) is not HTTPStatus.INTERNAL_SERVER_ERROR:
        return Reply.from_response(respond(make_problem(status, str(error))))
    return Reply.from_response(respond(failure(call, error, secrets.token_hex(6))))


def _requested_by(headers: Headers) -> str | None:
    """The person behind a token, from the header."""
    given = headers.get("x-requested-by")
    if given is None:
        return None
    try:
        name = given.strip().encode("latin-1").decode()
    except UnicodeDecodeError:
        name = ""
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        said = f"X-Requested-By should be one line of 1 to {LONGEST_NAME} characters in UTF-8."
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, said)
    return name
