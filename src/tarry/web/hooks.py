"""The inbound hook: another program says that it has recovered, and returns to a queue are resumed with a canary.

A request is authenticated by its signature only, as Standard Webhooks defines it: no token, and no session. Without a
secret (TARRY_HOOK_SECRET) the path does not exist.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from http import HTTPStatus
from math import ceil
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response

from tarry.core.breaker import BreakerState
from tarry.core.signature import BadSignatureError, Secret
from tarry.errors import Code, ConflictError, NotFoundError
from tarry.operations.breaker import BreakerRow, read_breakers
from tarry.operations.context import OperatorContext
from tarry.operations.destinations import is_glob
from tarry.operations.idempotency import IdempotencyKeys, ReusedKeyError, StoredReply
from tarry.operations.local import LocalOperations
from tarry.web.api.http_request import JSON, read_body
from tarry.web.api.middleware import Rates
from tarry.web.api.problems import ProblemError

log = structlog.get_logger()

PATH = "/hooks/resume/{queue:path}"
ACTOR = "hook"
"""Under this name the action is recorded, and replies are kept for repeated requests."""

LARGEST_BODY = 64 << 10
"""Bytes. The body is not used, but it is part of what is signed."""


@dataclass(frozen=True, slots=True)
class ResumeHook:
    """Verifies requests, and carries each of them out once."""

    context: OperatorContext
    secret: Secret
    calls: IdempotencyKeys
    rates: Rates

    def install(self, app: FastAPI) -> None:
        app.add_api_route(PATH, self.handle, methods=["POST"], include_in_schema=False)

    async def handle(self, request: Request, queue: str) -> Response:
        """A request that is repeated with the same id gets the answer of the first."""
        address = request.client.host if request.client else "?"
        self._limit(address)
        body = await read_body(request.headers, request.receive, LARGEST_BODY)
        id_ = self._verify(request, body, address)
        if is_glob(queue):
            raise ProblemError(Code.INVALID_REQUEST, "Name one queue: this hook accepts no globs.")
        fingerprint = hashlib.sha256(f"{request.url.path}\0".encode() + body).hexdigest()
        reply = await self._begin(id_, fingerprint)
        if reply is None:
            reply = await self._resume_once(id_, fingerprint, queue, address)
        return Response(reply.body, reply.status, media_type=reply.media_type, headers={"Cache-Control": "no-store"})

    def _limit(self, address: str) -> None:
        early = self.rates.take(f"@{address}")
        if early:
            detail = "Too many requests; wait as Retry-After says. API_RATE sets the limit per second."
            raise ProblemError(Code.RATE_LIMITED, detail, {"Retry-After": str(ceil(early))})

    def _verify(self, request: Request, body: bytes, address: str) -> str:
        try:
            return self.secret.verify(request.headers, body, time.time())
        except BadSignatureError as error:
            log.warning("hook refused", address=address, path=request.url.path, reason=str(error))
            raise ProblemError(Code.UNAUTHORIZED, f"The request is not accepted: {error}.") from None

    async def _begin(self, id_: str, fingerprint: str) -> StoredReply | None:
        try:
            return await self.calls.begin(ACTOR, id_, fingerprint)
        except ReusedKeyError as error:
            detail = "This webhook-id was used for another request. Every event needs an id of its own."
            raise ProblemError(Code.KEY_REUSED, detail) from error
        except ConflictError as error:
            raise ProblemError(Code.REQUEST_IN_PROGRESS, str(error), {"Retry-After": "1"}) from error

    async def _resume_once(self, id_: str, fingerprint: str, queue: str, address: str) -> StoredReply:
        try:
            reply = await self._resume(queue)
        except BaseException:
            await self.calls.drop(ACTOR, id_, fingerprint)
            raise
        await self.calls.finish(ACTOR, id_, fingerprint, reply)
        log.info("hook accepted", queue=queue, id=id_, address=address)
        return reply

    async def _resume(self, queue: str) -> StoredReply:
        """Ends a pause, and makes a breaker that has opened by itself probe at once. A queue that nothing holds is no
        error: the program need not know whether it is held.
        """
        operations = LocalOperations(self.context, ACTOR)
        breaker = (await read_breakers(self.context)).get(queue)
        holding = breaker if breaker is not None and breaker.state is not BreakerState.CLOSED else None
        answer = await _end_pause(operations, queue, is_held=holding is not None)
        if holding is not None:
            answer |= await _probe(operations, holding)
        return StoredReply(HTTPStatus.OK, JSON, json.dumps(answer).encode())


async def _end_pause(operations: LocalOperations, queue: str, *, is_held: bool) -> dict[str, Any]:
    """With a canary. `is_held` says that its breaker holds the queue, whether it is paused as well or not."""
    try:
        done = await operations.resume(queue, canary=True)
    except NotFoundError as error:
        return {"queue": queue, "resumed": False, "detail": str(error)}
    except ConflictError:
        if not is_held:
            raise
        return {"queue": queue}
    return {"queue": queue, "resumed": True, "canary": True, "action_id": done.action_id}


async def _probe(operations: LocalOperations, breaker: BreakerRow) -> dict[str, Any]:
    """The probe is the canary of a breaker. One that a person keeps open stays open."""
    if breaker.forced_by is not None:
        return {"resumed": False, "detail": f"{breaker.forced_by} keeps its breaker open"}
    if breaker.state is not BreakerState.OPEN:
        state = breaker.state.replace("_", "-")
        return {"resumed": False, "detail": f"its breaker is {state}: it closes by itself"}
    await operations.free_breaker(breaker.destination, reason="it says that it has recovered")
    return {"resumed": True, "canary": True}
