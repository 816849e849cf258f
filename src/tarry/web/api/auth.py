"""Who is calling and what they may do: bearer tokens with two roles; where there are none, anybody on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers

from tarry.errors import SettingsError
from tarry.settings import Settings
from tarry.settings.tokens import Role, Token, find
from tarry.web.api.fields import Text
from tarry.web.api.problems import ProblemError

LOCAL = "local"
READING = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose token it is, and for whom they say they act."""

    name: str
    role: Role
    requested_by: str | None = None

    def actor(self, requested_by: str | None = None) -> str:
        """As it is recorded: `ci/alice`. What the body says goes before the header X-Requested-By."""
        person = requested_by or self.requested_by
        return f"{self.name}/{person}" if person else self.name


class Requested(BaseModel):
    """What every action's body may say. A word that is not described is refused: `lats: 30m` would pause for good."""

    model_config = ConfigDict(extra="forbid")

    requested_by: Text | None = Field(None, description="Who wants this; recorded behind the token's name.")


@dataclass(frozen=True, slots=True)
class Access:
    """Who may come in. Without tokens: whoever can reach a loopback address, and is no web page."""

    tokens: tuple[Token, ...]

    @classmethod
    def of(cls, settings: Settings) -> Access:
        """Refuses to be open to others than this machine without tokens."""
        if not settings.tokens and not is_loopback(settings.http_host):
            raise SettingsError(
                f"HTTP_HOST={settings.http_host} would open the API to others, and there are no tokens. "
                "Make one with `tarry token new NAME --role operate` and set API_TOKENS, "
                "or set HTTP_API=off to serve only health and metrics there."
            )
        return cls(settings.tokens)

    def admit(self, headers: Headers, method: str) -> Caller:
        """The caller, or the reason why not. A call that could change something needs a token that may."""
        caller = self._by_token(headers) if self.tokens else _by_place(headers)
        if method not in READING and caller.role is not Role.OPERATE:
            raise _may_only_look(caller)
        return caller

    def _by_token(self, headers: Headers) -> Caller:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        token = find(self.tokens, given.strip()) if scheme.lower() == "bearer" else None
        if token is None:
            raise ProblemError(
                HTTPStatus.UNAUTHORIZED,
                "Send a token that the service knows: `Authorization: Bearer …`. `tarry token new` makes one.",
                {"WWW-Authenticate": 'Bearer realm="tarry"'},
            )
        return Caller(token.name, token.role)


def _by_place(headers: Headers) -> Caller:
    """Another site's page in a browser on this machine can reach us too: by its own name for our address (the host
    gives that away), or with a request across origins (the origin does).
    """
    host = headers.get("host", "")
    if not is_loopback(_split(f"//{host}")[1]):
        raise ProblemError(
            HTTPStatus.MISDIRECTED_REQUEST,
            "Without API_TOKENS the API answers only to the names of this machine itself, as in http://127.0.0.1.",
        )
    origin = headers.get("origin")
    foreign = origin is not None and _split(origin)[0] != host
    if foreign or headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
        raise ProblemError(HTTPStatus.FORBIDDEN, "Without API_TOKENS the API does not answer to other sites' pages.")
    return Caller(LOCAL, Role.OPERATE)


def _split(url: str) -> tuple[str, str]:
    """Host with port, and host alone; empty where it is no address."""
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


def _may_only_look(caller: Caller) -> ProblemError:
    return ProblemError(
        HTTPStatus.FORBIDDEN, f"The token {caller.name!r} may only look; this needs one with the role operate."
    )


bearer = HTTPBearer(auto_error=False, description="Made by `tarry token new`. Not needed where there are no tokens.")


async def looker(request: Request, _token: Annotated[object, Depends(bearer)]) -> Caller:
    """For everything that only reads. The guard has let them in already."""
    caller: Caller = request.state.caller
    return caller


async def operator(caller: Annotated[Caller, Depends(looker)]) -> Caller:
    """For everything that acts, and for payloads."""
    if caller.role is not Role.OPERATE:
        raise _may_only_look(caller)
    return caller


Looker = Annotated[Caller, Depends(looker)]
Operator = Annotated[Caller, Depends(operator)]
