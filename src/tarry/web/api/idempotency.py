"""`Idempotency-Key`: a request that is repeated with the same key is executed once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import structlog
from starlette.datastructures import Headers

from tarry.errors import AuditError, Code, ConflictError
from tarry.operations.idempotency import IdempotencyKeys, ReusedKeyError, StoredReply
from tarry.web.api.auth import Caller
from tarry.web.api.http_request import HttpReply, HttpRequest
from tarry.web.api.problems import ProblemError

log = structlog.get_logger()

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
PATTERN = r"^[!-~]{1,200}$"

Handler = Callable[[], Awaitable[HttpReply]]


async def once(keys: IdempotencyKeys, caller: Caller, request: HttpRequest, handle: Handler) -> HttpReply:
    """Only successful replies are stored. After a failure, the next request with the key is executed again."""
    key = key_of(request.headers)
    if key is None:
        return await handle()
    fingerprint = _fingerprint(request)
    known = await _begin(keys, caller.name, key, fingerprint)
    if known is not None:
        return HttpReply.of(known.status, known.media_type, known.body, {REPLAYED: "true"})
    reply = None
    try:
        reply = await handle()
    finally:
        await _end(keys, caller.name, key, fingerprint, reply)
    return reply


def key_of(headers: Headers) -> str | None:
    key = headers.get(HEADER)
    if key is not None and not re.fullmatch(PATTERN, key):
        raise ProblemError(Code.INVALID_REQUEST, f"{HEADER} must have 1 to 200 visible ASCII characters.")
    return key


async def _begin(keys: IdempotencyKeys, caller: str, key: str, fingerprint: str) -> StoredReply | None:
    try:
        return await keys.begin(caller, key, fingerprint)
    except ReusedKeyError as error:
        raise ProblemError(Code.KEY_REUSED, str(error)) from error
    except ConflictError as error:
        raise ProblemError(Code.REQUEST_IN_PROGRESS, str(error), {"Retry-After": "1"}) from error


async def _end(keys: IdempotencyKeys, caller: str, key: str, fingerprint: str, reply: HttpReply | None) -> None:
    """The reply is sent even if it cannot be stored."""
    try:
        if reply is not None and reply.status < HTTPStatus.MULTIPLE_CHOICES:
            await keys.finish(caller, key, fingerprint, StoredReply(reply.status, reply.media_type, reply.body))
        else:
            await keys.drop(caller, key, fingerprint)
    except AuditError as error:
        log.warning("reply not stored for its idempotency key", caller=caller, key=key, reason=str(error))


def _fingerprint(request: HttpRequest) -> str:
    made = hashlib.sha256()
    for part in (request.method, request.path, request.query, request.headers.get("x-requested-by", "")):
        made.update(part.encode() + b"\0")
    made.update(request.body)
    return made.hexdigest()
