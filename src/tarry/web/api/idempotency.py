"""`Idempotency-Key`: a caller who heard no answer asks again with the same key, and it is done once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import structlog
from starlette.datastructures import Headers

from tarry.control.calls import Answer, Calls, ReusedKeyError
from tarry.errors import AuditError, ConflictError
from tarry.web.api.auth import Caller
from tarry.web.api.exchange import Exchange, Reply
from tarry.web.api.problems import ProblemError

log = structlog.get_logger()

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
PATTERN = r"^[!-~]{1,200}$"

Handler = Callable[[], Awaitable[Reply]]


async def once(calls: Calls, caller: Caller, exchange: Exchange, handle: Handler) -> Reply:
    """Only what was done is kept. A call that failed changed nothing, or says so: the next one tries again."""
    key = key_of(exchange.headers)
    if key is None:
        return await handle()
    fingerprint = _fingerprint(exchange)
    known = await _begin(calls, caller.name, key, fingerprint)
    if known is not None:
        return Reply.of(known.status, known.media_type, known.body, {REPLAYED: "true"})
    reply = None
    try:
        reply = await handle()
    finally:
        await _end(calls, caller.name, key, fingerprint, reply)
    return reply


def key_of(headers: Headers) -> str | None:
    key = headers.get(HEADER)
    if key is not None and not re.fullmatch(PATTERN, key):
        raise ProblemError(
            HTTPStatus.UNPROCESSABLE_ENTITY, f"{HEADER} should have from 1 to 200 visible ASCII characters."
        )
    return key


async def _begin(calls: Calls, caller: str, key: str, fingerprint: str) -> Answer | None:
    try:
        return await calls.begin(caller, key, fingerprint)
    except ReusedKeyError as error:
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
    except ConflictError as error:
        raise ProblemError(HTTPStatus.CONFLICT, str(error), {"Retry-After": "1"}) from error


async def _end(calls: Calls, caller: str, key: str, fingerprint: str, reply: Reply | None) -> None:
    """The answer goes out even if it cannot be kept: it is true all the same."""
    try:
        if reply is not None and reply.status < HTTPStatus.MULTIPLE_CHOICES:
            await calls.finish(caller, key, fingerprint, Answer(reply.status, reply.media_type, reply.body))
        else:
            await calls.drop(caller, key, fingerprint)
    except AuditError as error:
        log.warning("an answer was not kept for its key", caller=caller, key=key, reason=str(error))


def _fingerprint(exchange: Exchange) -> str:
    made = hashlib.sha256()
    for part in (exchange.method, exchange.path, exchange.query, exchange.headers.get("x-requested-by", "")):
        made.update(part.encode() + b"\0")
    made.update(exchange.body)
    return made.hexdigest()
