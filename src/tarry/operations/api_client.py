"""Calls to the HTTP API of a service; its error responses become the errors that a direct call raises."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NoReturn
from urllib.parse import quote

import httpx

from tarry.core.urls import BadUrlError, Url, split_url
from tarry.errors import (
    ApiError,
    AuditUnavailableError,
    CheckUnavailableError,
    Code,
    ConflictError,
    InsufficientCreditsError,
    NotFoundError,
    SettingsError,
    TarryError,
    WrongStateError,
)

PREFIX = "/api/v1"
TIMEOUT = 60.0
"""Seconds for a response: longer than the service takes to report its own timeout."""

SILENCE = 60.0
"""Seconds without a byte after which a stream is taken to be dead: the service sends a comment every 15 seconds."""

PAUSE = 0.5
"""Seconds before a request is repeated, if the service does not say."""

ERRORS: dict[int, type[TarryError]] = {
    HTTPStatus.BAD_REQUEST: WrongStateError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.CONFLICT: ConflictError,
    HTTPStatus.UNPROCESSABLE_ENTITY: SettingsError,
    HTTPStatus.SERVICE_UNAVAILABLE: AuditUnavailableError,
}
"""By the HTTP status; `code` of the problem is the code of the error."""

Parameters = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ApiClient:
    """One service. Use `open`."""

    at: Url
    http: httpx.AsyncClient
    token: str | None
    person: str
    """Who uses it; recorded after the name of the token."""

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, token: str | None, person: str) -> AsyncIterator[ApiClient]:
        at = _address(url)
        base = at.place.rstrip("/") + PREFIX
        # Each request has a connection of its own: one that the service has closed meanwhile would fail.
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=base, timeout=TIMEOUT, limits=limits, trust_env=False) as http:
            yield cls(at, http, token, person)

    async def get(self, path: str, parameters: Parameters | None = None) -> Any:
        return await self._until_answered("GET", path, params=_set_only(parameters))

    async def post(self, path: str, body: Parameters | None = None) -> Any:
        """With an idempotency key, so that a repeated request is carried out once."""
        key = {"Idempotency-Key": secrets.token_hex(16)}
        return await self._until_answered("POST", path, headers=key, json=_set_only(body))

    async def open_stream(
        self, path: str, parameters: Parameters | None = None, headers: Mapping[str, str] | None = None
    ) -> ServerEvents:
        """Server-sent events; the caller closes them."""
        given = {"X-Requested-By": self.person, **(headers or {})}
        if self.token:
            given["Authorization"] = f"Bearer {self.token}"
        request = self.http.build_request(
            "GET", path, params=_set_only(parameters), headers=given, timeout=httpx.Timeout(TIMEOUT, read=SILENCE)
        )
        try:
            response = await self.http.send(request, stream=True)
            if not response.is_success:
                await response.aread()
                self._read(response)
        except httpx.HTTPError as error:
            raise ApiError(f"No answer from {self.at.place}: {_reason(error)}.") from error
        return ServerEvents(self.at, response)

    async def _until_answered(self, method: str, path: str, **request: Any) -> Any:
        """Repeats the request while the service asks for that, or closes the connection without a response."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                return await self._call(method, path, **request)
            except _AgainError as error:
                if time.monotonic() + error.after > deadline:
                    raise error.final() from error
                await asyncio.sleep(error.after)

    async def _call(self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **request: Any) -> Any:
        given: dict[bytes, bytes] = {b"X-Requested-By": self.person.encode()}
        given |= {name.encode(): value.encode() for name, value in (headers or {}).items()}
        if self.token:
            given[b"Authorization"] = f"Bearer {self.token}".encode()
        try:
            response = await self.http.request(method, path, headers=list(given.items()), **request)
        except httpx.RemoteProtocolError as error:
            raise _AgainError(f"{self.at.place} closed the connection without a response.", PAUSE) from error
        except httpx.HTTPError as error:
            raise ApiError(
                f"No answer from {self.at.place}: {_reason(error)}. Is the service running there, with HTTP_API=on? "
                "Without --api and TARRY_API the command uses the broker and Postgres directly."
            ) from error
        return self._read(response)

    def _read(self, response: httpx.Response) -> Any:
        try:
            content = response.json()
        except ValueError:
            raise ApiError(
                f"{self.at.place} answered {response.status_code} without JSON: is that a tarry service?"
            ) from None
        if not response.is_success:
            self._refuse(response, content if isinstance(content, dict) else {"detail": content})
        return content

    def _refuse(self, response: httpx.Response, problem: Mapping[str, Any]) -> NoReturn:
        error = self._error(response, problem)
        error.code = Code.named(problem.get("code")) or error.code  # another version may have other codes
        raise error

    def _error(self, response: httpx.Response, problem: Mapping[str, Any]) -> TarryError:
        detail, status, later = str(problem.get("detail")), response.status_code, response.headers.get("Retry-After")
        if later is not None or status == HTTPStatus.GATEWAY_TIMEOUT:
            return _AgainError(detail, float(later) if later and later.isdecimal() else PAUSE)
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            return ApiError(f"{self.at.place} refused access: {detail} Use --token or set TARRY_TOKEN.")
        if problem.get("code") == Code.INSUFFICIENT_CREDITS:
            return InsufficientCreditsError(detail, problem.get("required"), problem.get("available"))
        if problem.get("code") == Code.CHECK_UNAVAILABLE:
            return CheckUnavailableError(detail)
        return ERRORS.get(status, ApiError)(detail)


@dataclass(frozen=True, slots=True)
class ServerEvents:
    """A response of server-sent events."""

    at: Url
    response: httpx.Response

    async def messages(self) -> AsyncIterator[tuple[str, str]]:
        """Id and data of each; raises if the service ends the connection without ending the response."""
        id_ = ""
        try:
            async for line in self.response.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    id_ = value
                elif name == "data":
                    yield id_, value
        except httpx.HTTPError as error:
            raise ApiError(f"{self.at.place} ended the stream of events: {_reason(error)}.") from error

    async def aclose(self) -> None:
        await self.response.aclose()


class _AgainError(ApiError):
    """No response yet: a repeated request may get one."""

    def __init__(self, message: str, after: float) -> None:
        super().__init__(message)
        self.after = after

    def final(self) -> ApiError:
        """The error if it is not repeated any more."""
        error = ApiError(str(self))
        error.code = self.code
        return error


def _address(url: str) -> Url:
    """The address without a login: the API uses tokens."""
    try:
        at = split_url(url)
    except BadUrlError as error:
        raise SettingsError(f"--api: write http://host:8086 or https://host ({error})") from None
    if at.scheme not in {"http", "https"}:
        raise SettingsError("--api: write http://host:8086 or https://host")
    return at


def _reason(error: Exception) -> str:
    """The operating system's own text if there is one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


def _set_only(values: Parameters | None) -> dict[str, Any]:
    return {name: value for name, value in (values or {}).items() if value is not None}


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")
