"""Errors as `application/problem+json` (RFC 9457), with the stable code and the status of each error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from tarry.errors import Code, TarryError

log = structlog.get_logger()

MEDIA_TYPE = "application/problem+json"


class Mistake(BaseModel):
    """One error in a request."""

    where: str = Field(description="The parameter, or the path in the body.")
    what: str = Field(description="What is wrong with it.")


class Problem(BaseModel):
    """An error: what went wrong, and what to do."""

    type: str = Field(description="The kind of problem: urn:tarry:problem:…")
    title: str = Field(description="The kind of problem, for people.")
    status: int = Field(description="The HTTP status.")
    code: str = Field(description="The stable code of the error; docs/api.md lists them.")
    detail: str = Field(description="What happened, and what to do about it.")
    errors: list[Mistake] | None = Field(None, description="Each error in the request.")
    required: float | None = Field(None, description="With `insufficient_credits`: the credits that the retry needs.")
    available: float | None = Field(None, description="With `insufficient_credits`: the credits that there are.")
    id: str | None = Field(None, description="For an internal error: its id in the log of the service.")


class ProblemError(Exception):
    """Ends a request with this problem as the answer."""

    def __init__(self, code: Code, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.problem = make_problem(code, detail)
        self.headers = headers


def make_problem(code: Code, detail: str, status: HTTPStatus | None = None, /, **more: Any) -> Problem:
    """`status` is given only for an error of the framework, whose own status is kept."""
    status = status or HTTPStatus(code.status or HTTPStatus.INTERNAL_SERVER_ERROR)
    kind = status.phrase.lower().replace(" ", "-").replace("'", "")
    return Problem(
        type=f"urn:tarry:problem:{kind}", title=status.phrase, status=status, code=code, detail=detail, **more
    )


def problem_of(error: TarryError) -> Problem:
    return make_problem(error.code, str(error), **error.details)


def respond(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    text = problem.model_dump_json(exclude_none=True)
    return Response(text, problem.status, headers=headers, media_type=MEDIA_TYPE)


def is_internal(error: TarryError) -> bool:
    """Whether it is a bug, or a problem of the installation that the caller cannot solve."""
    return error.code.status in {None, HTTPStatus.INTERNAL_SERVER_ERROR}


def install(app: FastAPI) -> None:
    """Turns every error of the framework or of tarry into a problem."""
    app.add_exception_handler(ProblemError, _ended)
    app.add_exception_handler(TarryError, _refused)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)


def failure(request: str, error: BaseException, mark: str) -> Problem:
    """An unexpected error: the caller gets only the id under which it is logged."""
    log.error("api request failed", request=request, id=mark, exc_info=error)
    code = error.code if isinstance(error, TarryError) and error.code.status else Code.INTERNAL
    detail = f"This is a bug in tarry, not in your request. The log of the service has it under the id {mark}."
    return make_problem(code, detail, id=mark)


async def _ended(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)  # noqa: S101 - the type of handlers is less specific than the table
    return respond(error.problem, error.headers)


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, TarryError)  # noqa: S101 - as above
    if is_internal(error):
        raise error
    return respond(problem_of(error))


async def _http(request: Request, error: Exception) -> Response:
    """Errors of the framework: unknown path, wrong method, invalid JSON."""
    assert isinstance(error, HTTPException)  # noqa: S101 - as above
    status = HTTPStatus(error.status_code)
    detail = {
        HTTPStatus.NOT_FOUND: f"There is nothing at {request.url.path}.",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.url.path} does not allow {request.method}.",
    }.get(status, str(error.detail))
    headers = dict(error.headers or {})
    if status is HTTPStatus.METHOD_NOT_ALLOWED and (methods := _methods(request)):
        headers["Allow"] = ", ".join(methods)
    return respond(make_problem(_CODES.get(status, Code.INVALID_REQUEST), detail, status), headers)


_CODES = {HTTPStatus.NOT_FOUND: Code.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED: Code.METHOD_NOT_ALLOWED}


def _methods(request: Request) -> list[str]:
    """All methods of the path; the framework names only those of the first route."""
    return sorted(
        method.upper()
        for path, operations in request.app.openapi()["paths"].items()
        if re.fullmatch(re.sub(r"\\{[^}]*\\}", "[^/]+", re.escape(path)), request.url.path)
        for method in operations
    )


async def _invalid(_request: Request, error: Exception) -> Response:
    """Names each error and its place; never the value, which may be a payload, or not text."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - as above
    mistakes = [Mistake(where=".".join(map(_word, one["loc"])), what=one["msg"]) for one in error.errors()]
    detail = "; ".join(f"{one.where}: {one.what}" for one in mistakes)
    return respond(make_problem(Code.INVALID_REQUEST, detail, errors=mistakes))


def _word(part: object) -> str:
    """A name from the request, safe to print."""
    return str(part).encode("ascii", "backslashreplace").decode()[:100]
