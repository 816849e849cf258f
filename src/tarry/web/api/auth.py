"""Authentication and roles: bearer tokens with two roles; without tokens, local callers only."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers

from tarry.core.queue_scope import QueueScope
from tarry.errors import Code, SettingsError
from tarry.settings import Settings
from tarry.settings.tokens import Role, Token, find
from tarry.web.api.parameters import Text
from tarry.web.api.problems import ProblemError

LOCAL = "local"
READING = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Caller:
    """The name of the token, its role, and the person it is used for."""

    name: str
    role: Role
    requested_by: str | None = None
    scope: QueueScope | None = None
    """The queues that it is limited to; None for all."""

    def actor(self, requested_by: str | None = None) -> str:
        """The recorded actor, such as `ci/alice`. The body takes precedence over the header X-Requested-By."""
        person = requested_by or self.requested_by
        return f"{self.name}/{person}" if person else self.name


class Requested(BaseModel):
    """Common fields of every action. Unknown fields are refused: `lats: 30m` would pause without an end."""

    model_config = ConfigDict(extra="forbid")

    requested_by: Text | None = Field(
        None, description="The person who requests this; recorded after the name of the token."
    )


@dataclass(frozen=True, slots=True)
class Access:
    """Which callers are allowed. Without tokens: all that reach a loopback address, except web pages of other sites."""

    tokens: tuple[Token, ...]

    @classmethod
    def of(cls, settings: Settings) -> Access:
        """Raises SettingsError if the API would be reachable from other machines without tokens."""
        if not settings.tokens and not is_loopback(settings.http_host):
            raise SettingsError(
                f"HTTP_HOST={settings.http_host} would open the API to other machines, and there are no tokens. "
                "Create one with `tarry token new NAME --role operate` and set API_TOKENS, "
                "or set HTTP_API=off to serve only health and metrics there."
            )
        return cls(settings.tokens)

    def admit(self, headers: Headers, method: str) -> Caller:
        """The caller; raises ProblemError if it is not allowed. Methods that change something need the role operate."""
        caller = self._by_token(headers) if self.tokens else by_address(headers)
        if method not in READING and caller.role is not Role.OPERATE:
            raise may_only_look(caller)
        return caller

    def _by_token(self, headers: Headers) -> Caller:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        token = find(self.tokens, given.strip()) if scheme.lower() == "bearer" else None
        if token is None:
            raise ProblemError(
                Code.UNAUTHORIZED,
                "Send a valid token: `Authorization: Bearer …`. `tarry token new` creates one.",
                {"WWW-Authenticate": 'Bearer realm="tarry"'},
            )
        return Caller(token.name, token.role, scope=token.scope)


def by_address(headers: Headers) -> Caller:
    """The caller of a service without tokens.

    A page of another site, in a browser on this machine, can reach a loopback address too: through a host name that
    resolves to it (the Host header shows it), or with a cross-origin request (the Origin header shows it).
    """
    host = headers.get("host", "")
    if not is_loopback(_split(f"//{host}")[1]):
        raise ProblemError(
            Code.WRONG_HOST,
            "Without API_TOKENS the API accepts only local host names, such as http://127.0.0.1.",
        )
    origin = headers.get("origin")
    foreign = origin is not None and _split(origin)[0] != host
    if foreign or headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
        raise ProblemError(
            Code.FORBIDDEN, "Without API_TOKENS the API does not accept requests from pages of other sites."
        )
    return Caller(LOCAL, Role.OPERATE)


def _split(url: str) -> tuple[str, str]:
    """Host with port, and host alone; both empty if the URL is not valid."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", ""
    return parts.netloc, parts.hostname or ""


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def may_only_look(caller: Caller) -> ProblemError:
    return ProblemError(Code.FORBIDDEN, f"The token {caller.name!r} has the role look; this needs the role operate.")


bearer = HTTPBearer(auto_error=False, description="Created by `tarry token new`. Not needed if API_TOKENS is empty.")


async def looker(request: Request, _token: Annotated[object, Depends(bearer)]) -> Caller:
    """For routes that only read. The middleware has authenticated the caller already."""
    caller: Caller = request.state.caller
    return caller


async def operator(caller: Annotated[Caller, Depends(looker)]) -> Caller:
    """For actions and payloads."""
    if caller.role is not Role.OPERATE:
        raise may_only_look(caller)
    return caller


Looker = Annotated[Caller, Depends(looker)]
Operator = Annotated[Caller, Depends(operator)]
