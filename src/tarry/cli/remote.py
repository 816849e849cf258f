"""The HTTP API from the command line: a call, and its refusals as the errors that the same command raises directly."""

from __future__ import annotations

import http.client
import json
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

from tarry.core.urls import BadUrlError, Url, split_url
from tarry.errors import (
    ApiError,
    AuditUnavailableError,
    ConflictError,
    NotFoundError,
    SettingsError,
    TarryError,
    WrongStateError,
)

PREFIX = "/api/v1"
PATIENCE = 60.0
"""Seconds for an answer: longer than the service takes to say that it has none."""

PAUSE = 0.5
"""Seconds before it is asked again, where it does not say."""

ERRORS: dict[int, type[TarryError]] = {
    HTTPStatus.BAD_REQUEST: WrongStateError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.CONFLICT: ConflictError,
    HTTPStatus.UNPROCESSABLE_ENTITY: SettingsError,
    HTTPStatus.SERVICE_UNAVAILABLE: AuditUnavailableError,
}

Parameters = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Remote:
    """One service."""

    url: str
    token: str | None
    person: str
    """Who is at this terminal; recorded behind the token's name."""

    def get(self, path: str, parameters: Parameters | None = None) -> Any:
        given = {name: value for name, value in (parameters or {}).items() if value is not None}
        whole = f"{path}?{urlencode(given, doseq=True)}" if given else path
        return self._insist(lambda: self._call("GET", whole, None, {}))

    def act(self, path: str, body: Parameters | None = None) -> Any:
        """With a key of its own, so that to ask again after a lost answer does nothing twice."""
        headers = {"Idempotency-Key": secrets.token_hex(16)}
        said = {name: value for name, value in (body or {}).items() if value is not None}
        return self._insist(lambda: self._call("POST", path, said, headers))

    def _insist(self, call: Callable[[], Any]) -> Any:
        """A service that says `later`, or whose answer was lost, is asked again for as long as an answer may take."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return call()
            except _AgainError as error:
                if time.monotonic() + error.after > deadline:
                    raise ApiError(str(error)) from error
                time.sleep(error.after)

    def _call(self, method: str, path: str, body: Parameters | None, headers: Mapping[str, str]) -> Any:
        connection = self._connection()
        given: dict[str, str | bytes] = {"X-Requested-By": self.person.encode(), **headers}
        if self.token:
            given["Authorization"] = f"Bearer {self.token}".encode()
        text = None if body is None else json.dumps(body)
        if text is not None:
            given["Content-Type"] = "application/json"
        try:
            connection.request(method, self._at.path.rstrip("/") + PREFIX + path, text, given)
            answer = connection.getresponse()
            return self._read(answer.status, answer.getheader("Retry-After"), answer.read())
        except http.client.RemoteDisconnected as error:
            raise _AgainError(f"{self._at.place} hung up without an answer.", PAUSE) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or error
            raise ApiError(
                f"No answer from {self._at.place}: {reason}. Does the service run there, with HTTP_API=on? Without "
                "--api and TARRY_API the command goes to broker and Postgres directly."
            ) from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        at = self._at
        if at.scheme == "https":
            return http.client.HTTPSConnection(at.host, at.port, timeout=PATIENCE, context=ssl.create_default_context())
        return http.client.HTTPConnection(at.host, at.port, timeout=PATIENCE)

    @property
    def _at(self) -> Url:
        """Its address; shown without a login, for which a token is used here."""
        try:
            at = split_url(self.url)
        except BadUrlError as error:
            raise SettingsError(f"--api: write http://host:8086 or https://host ({error})") from None
        if at.scheme not in {"http", "https"}:
            raise SettingsError("--api: write http://host:8086 or https://host")
        return at

    def _read(self, status: int, later: str | None, raw: bytes) -> Any:
        try:
            said = json.loads(raw)
        except ValueError:
            raise ApiError(f"{self._at.place} answered {status} and no JSON: is that a tarry service?") from None
        if status < HTTPStatus.MULTIPLE_CHOICES:
            return said
        detail = str(said.get("detail") if isinstance(said, dict) else said)
        if later is not None or status == HTTPStatus.GATEWAY_TIMEOUT:
            raise _AgainError(detail, float(later) if later and later.isdecimal() else PAUSE)
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            raise ApiError(f"{self._at.place} did not let us in: {detail} Give --token or set TARRY_TOKEN.")
        raise ERRORS.get(status, ApiError)(detail)


class _AgainError(ApiError):
    """No answer yet: to ask again in a moment may get one."""

    def __init__(self, message: str, after: float) -> None:
        super().__init__(message)
        self.after = after


def segment(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")
