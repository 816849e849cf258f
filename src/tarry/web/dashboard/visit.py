"""One request of a browser: who asks, what they may do, and how the answer is made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlsplit

from jinja2 import Environment, Template
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from tarry import __version__
from tarry.errors import Code
from tarry.operations.advice import PolicyAdvice
from tarry.operations.context import OperatorContext
from tarry.operations.overview import Activity, DestinationNumbers
from tarry.operations.protocol import ActingOperations
from tarry.operations.review.browse import By, Group
from tarry.operations.status import ServiceStatus
from tarry.service.app import Service
from tarry.settings.tokens import Role
from tarry.topology.findings import Finding
from tarry.topology.model import Topology
from tarry.topology.partial import NamesOnly
from tarry.web.api.auth import Caller
from tarry.web.api.dependencies import Shared
from tarry.web.api.problems import ProblemError
from tarry.web.dashboard.sessions import Session, Sessions

LOGIN = "/login"
SESSION, NOTICE = "tarry_session", "tarry_notice"
NOTICE_LASTS = 60

STALE = 12.0
"""Seconds by which a number that all viewers share may be older than usual, so that none of them waits for it."""

LONGEST_NOTICE = 1_000

T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Readings:
    """What several requests read at once, and this process."""

    status: Shared[ServiceStatus]
    activity: Shared[Activity]
    findings: Shared[list[Finding]]
    """What differs between the broker and the topology files."""
    context: OperatorContext
    destinations: Shared[list[DestinationNumbers]]
    groups: Mapping[By, Shared[list[Group]]]
    """In review, the largest."""
    advice: Shared[PolicyAdvice]
    """From the retries of the last week."""
    service: Service

    @property
    def files(self) -> Topology | NamesOnly:
        """The topology in use, which may change while the service runs."""
        return self.context.files


@dataclass(frozen=True, slots=True)
class Renderer:
    """What all visits share."""

    readings: Readings
    environment: Environment
    sessions: Sessions
    service: str
    with_login: bool
    """False for a service without tokens."""


@dataclass(slots=True)
class Visit:
    """One request."""

    request: Request
    renderer: Renderer
    session: Session
    caller: Caller | None
    """None before the login."""
    ops: ActingOperations | None
    form: Mapping[str, str] = field(default_factory=dict)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    is_live: bool = False
    """Only the part of a page that changes is wanted, and its title."""

    @property
    def operations(self) -> ActingOperations:
        if self.ops is None:
            raise ProblemError(Code.UNAUTHORIZED, "Log in first.")
        return self.ops

    @property
    def shared(self) -> Readings:
        return self.renderer.readings

    @property
    def may_act(self) -> bool:
        return self.caller is not None and self.caller.role is Role.OPERATE

    @property
    def is_limited(self) -> bool:
        """To some queues."""
        return self.caller is not None and self.caller.scope is not None

    def asked(self, name: str) -> str | None:
        """A parameter of the query; None if it is absent or empty."""
        return (self.request.query_params.get(name) or "").strip() or None

    def given(self, name: str) -> str | None:
        """A field of the form; None if it is absent or empty."""
        return self.form.get(name, "").strip() or None

    def named(self, name: str) -> str:
        """A hidden field that names something, exactly as it was."""
        if not self.form.get(name):
            raise ProblemError(Code.INVALID_REQUEST, f"The form has no field {name!r}.")
        return self.form[name]

    def lines(self, name: str) -> list[str]:
        """A field of the form with one thing on each line."""
        return [line.strip() for line in self.form.get(name, "").splitlines() if line.strip()]

    def render(self, template: str, status: int = HTTPStatus.OK, /, **values: Any) -> Response:
        shared = {
            "visit": self,
            "caller": self.caller,
            "may_act": self.may_act,
            "form_key": self.renderer.sessions.form_key(self.session),
            "notice": self._notice(),
            "now": self.now,
            "path": self.request.url.path,
            "service": self.renderer.service,
            "version": __version__,
            "with_login": self.renderer.with_login,
        }
        found, given = self.renderer.environment.get_template(template), shared | values
        if self.is_live:
            return _live_part(found, given | {"forms": self.renderer.environment.get_template("forms.html")}, status)
        made = HTMLResponse(found.render(given), status)
        if NOTICE in self.request.cookies:
            made.delete_cookie(NOTICE, **self._cookie())
        return made

    @property
    def form_page(self) -> str:
        """The page that the form is on; the overview if that is not known. After a login: the page that was wanted."""
        if self.request.url.path == LOGIN:
            return local_path(self.given("next"))
        try:
            page = urlsplit(self.request.headers.get("referer", ""))
        except ValueError:
            return "/"
        is_form = self.request.method == "POST" and page.netloc == self.request.url.netloc
        return local_path(f"{page.path}?{page.query}" if page.query else page.path) if is_form else "/"

    def done(self, notice: str, to: str) -> Response:
        """After an action: a redirect, so that reloading the page does not repeat it."""
        answer = RedirectResponse(to, HTTPStatus.SEE_OTHER)
        text = json.dumps([self.session.id, notice[:LONGEST_NOTICE]])
        signed = self.renderer.sessions.sign("notice", text)
        answer.set_cookie(NOTICE, signed, max_age=NOTICE_LASTS, **self._cookie())
        return answer

    def log_in(self, session: Session, to: str) -> Response:
        answer = RedirectResponse(to, HTTPStatus.SEE_OTHER)
        self.keep(answer, session)
        return answer

    def log_out(self, to: str) -> Response:
        self.renderer.sessions.end(self.session)
        answer = RedirectResponse(to, HTTPStatus.SEE_OTHER)
        answer.delete_cookie(SESSION, **self._cookie())
        return answer

    def keep(self, answer: Response, session: Session) -> None:
        """Sends the cookie of a session. It ends with the browser, or when the session expires."""
        answer.set_cookie(SESSION, self.renderer.sessions.cookie_of(session), **self._cookie())

    def _cookie(self) -> dict[str, Any]:
        return {"httponly": True, "samesite": "strict", "path": "/", "secure": self.request.url.scheme == "https"}

    def _notice(self) -> str | None:
        text = self.renderer.sessions.verified("notice", self.request.cookies.get(NOTICE, ""))
        if text is None:
            return None
        session, notice = json.loads(text)
        return str(notice) if session == self.session.id else None


def _live_part(template: Template, values: dict[str, Any], status: int) -> Response:
    """JSON of the blocks; nothing for a page that has no such part."""
    values["forms"] = values["forms"].make_module(values)
    context = template.new_context(values)
    parts = {name: "".join(template.blocks[name](context)) for name in ("title", "live") if name in template.blocks}
    return JSONResponse(parts, status)


def local_path(wanted: str | None) -> str:
    """A path of the dashboard: a link with another site in it must not lead there."""
    is_local = wanted is not None and wanted.startswith("/") and wanted[1:2] not in {"/", "\\"}
    return wanted if wanted is not None and is_local and wanted.isprintable() else "/"


def validated(model: type[T], values: Mapping[str, Any]) -> T:
    """The same checks as in the HTTP API. What is None counts as not given."""
    try:
        return model.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        mistakes = (f"{'.'.join(map(str, one['loc']))}: {_plain(one['msg'])}" for one in error.errors())
        raise ProblemError(Code.INVALID_REQUEST, "; ".join(mistakes)) from None


def _plain(message: str) -> str:
    return message.removeprefix("Value error, ")
