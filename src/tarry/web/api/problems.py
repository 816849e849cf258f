"""Errors as `application/problem+json` (RFC 9457): one table says which error is which status."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from tarry.errors import (
    AuditUnavailableError,
    BrokerError,
    ConflictError,
    ControlError,
    NotFoundError,
    SettingsError,
    TarryError,
    TopologyError,
)

log = structlog.get_logger()

MEDIA_TYPE = "application/problem+json"

STATUS: tuple[tuple[type[TarryError], HTTPStatus], ...] = (
    (NotFoundError, HTTPStatus.NOT_FOUND),
    (ConflictError, HTTPStatus.CONFLICT),
    (ControlError, HTTPStatus.BAD_REQUEST),
    (SettingsError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (TopologyError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (AuditUnavailableError, HTTPStatus.SERVICE_UNAVAILABLE),
    (BrokerError, HTTPStatus.SERVICE_UNAVAILABLE),
)
"""The first that fits; an error that is not here is a mistake of ours, and a 500."""


class Mistake(BaseModel):
    """One thing that is wrong with a request."""

    where: str = Field(description="The parameter, or the way into the body.")
    what: str = Field(description="What is wrong with it.")


class Problem(BaseModel):
    """What went wrong, to what, and what to do next."""

    type: str = Field(description="Names the kind of problem: urn:tarry:problem:…")
    title: str = Field(description="The kind of problem, for people.")
    status: int = Field(description="The status of the answer.")
    detail: str = Field(description="What happened this time, and what to do about it.")
    errors: list[Mistake] | None = Field(None, description="Each thing that is wrong with the request.")
    id: str | None = Field(None, description="Of an error that is ours: the same id is in the service's log.")


class ProblemError(Exception):
    """Ends a request with this answer."""

    def __init__(self, status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.problem = make_problem(status, detail)
        self.headers = headers


def make_problem(status: HTTPStatus, detail: str, errors: list[Mistake] | None = None) -> Problem:
    kind = status.phrase.lower().replace(" ", "-").replace("'", "")
    return Problem(
        type=f"urn:tarry:problem:{kind}", title=status.phrase, status=status, detail=detail, errors=errors, id=None
    )


def respond(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    text = problem.model_dump_json(exclude_none=True)
    return Response(text, problem.status, headers=headers, media_type=MEDIA_TYPE)


def status_of(error: TarryError) -> HTTPStatus:
    return next((status for kind, status in STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)


def install(app: FastAPI) -> None:
    """Whatever the framework or tarry raises below the app becomes a problem."""
    app.add_exception_handler(ProblemError, _ended)
    app.add_exception_handler(TarryError, _refused)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)


def failure(request: str, error: BaseException, mark: str) -> Problem:
    """An error that nobody foresaw: the caller gets the id that the log has it under, and nothing else."""
    log.error("a request failed", request=request, id=mark, exc_info=error)
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    said = f"This is a mistake in tarry, not in your request. The service's log has it under the id {mark}."
    return make_problem(status, said).model_copy(update={"id": mark})


async def _ended(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)  # noqa: S101 - the handlers' type says less than their table
    return respond(error.problem, error.headers)


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, TarryError)  # noqa: S101 - as above
    status = status_of(error)
    if status is HTTPStatus.INTERNAL_SERVER_ERROR:
        raise error
    return respond(make_problem(status, str(error)))


async def _http(request: Request, error: Exception) -> Response:
    """The framework's own: no such path, no such method, a body that is no JSON."""
    assert isinstance(error, HTTPException)  # noqa: S101 - as above
    status = HTTPStatus(error.status_code)
    said = {
        HTTPStatus.NOT_FOUND: f"There is nothing at {request.url.path}.",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.url.path} does not take {request.method}.",
    }.get(status, str(error.detail))
    headers = dict(error.headers or {})
    if status is HTTPStatus.METHOD_NOT_ALLOWED and (methods := _methods(request)):
        headers["Allow"] = ", ".join(methods)
    return respond(make_problem(status, said), headers)


def _methods(request: Request) -> list[str]:
    """All that the path takes; the framework names those of the first route only."""
    return sorted(
        method.upper()
        for path, operations in request.app.openapi()["paths"].items()
        if re.fullmatch(re.sub(r"\\{[^}]*\\}", "[^/]+", re.escape(path)), request.url.path)
        for method in operations
    )


async def _invalid(_request: Request, error: Exception) -> Response:
    """Says what is wrong where; never repeats the value, which may be a payload, or no text at all."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - as above
    mistakes = [Mistake(where=".".join(map(_word, one["loc"])), what=one["msg"]) for one in error.errors()]
    said = "; ".join(f"{one.where}: {one.what}" for one in mistakes)
    return respond(make_problem(HTTPStatus.UNPROCESSABLE_ENTITY, said, mistakes))


def _word(part: object) -> str:
    """A name out of the request, safe to print."""
    return str(part).encode("ascii", "backslashreplace").decode()[:100]
