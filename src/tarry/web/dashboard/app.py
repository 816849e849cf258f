"""The ASGI application of the dashboard: who may see a page, forms, limits, headers, and errors as pages."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qsl, quote

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tarry.errors import Code, TarryError
from tarry.operations.action_log import ORIGIN
from tarry.operations.context import OperatorContext
from tarry.settings import Settings
from tarry.web.api.auth import READING, Caller, by_address, may_only_look
from tarry.web.api.dependencies import operations_of
from tarry.web.api.http_request import HttpReply, HttpRequest, read
from tarry.web.api.middleware import MOST_STREAMS, ApiRules
from tarry.web.api.problems import Problem, ProblemError, failure, is_internal, make_problem, problem_of
from tarry.web.dashboard import (
    actions,
    audit,
    destinations,
    live,
    login,
    overview,
    policies,
    retries,
    review,
    runbook,
    static,
    statistics,
    stuck,
    topology,
)
from tarry.web.dashboard.rendering import make_environment
from tarry.web.dashboard.sessions import LOCAL, Session, Sessions
from tarry.web.dashboard.visit import SESSION, Readings, Renderer, Visit

log = structlog.get_logger()

FORM = "application/x-www-form-urlencoded"
MOST_FIELDS = 200

LARGEST_FORM = 256 << 10
"""Bytes. The body of a form is read before it is known whether the caller may send it. In a form, a payload that can be
edited takes up to three times its size."""

OURS = frozenset(
    {
        *("", "login", "logout", "static", "favicon.ico", "live", "runbook", "pauses"),
        *("destinations", "retries", "stuck", "review", "policies", "topology", "audit", "actions", "statistics"),
    }
)
"""The first segments of the paths of the dashboard."""

SECURITY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # With no-referrer, browsers would send forms with the origin null.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


TITLES = {
    400: "This cannot be done",
    403: "Not allowed",
    404: "Not found",
    409: "Not possible now",
    422: "Something is not filled in correctly",
    503: "Something is not available",
    504: "No answer in time",
}
"""Of pages that say an error, by the status of HTTP."""


def is_ours(path: str) -> bool:
    """Whether the dashboard answers it, and not the API or health."""
    return path == "/" or (path.startswith("/") and path.split("/", 2)[1] in OURS - {""})


Handler = Callable[[Visit], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class PageRoute:
    """A handler of one path. An action changes something: it is a form of an operator."""

    path: str
    handler: Handler
    is_action: bool = False
    is_open: bool = False
    """Needs no login."""

    def route(self) -> Route:
        async def answer(request: Request) -> Response:
            visit: Visit = request.state.visit
            if self.is_open:
                return await self.handler(visit)
            if visit.caller is None:
                return _to_login(visit)
            if self.is_action and not visit.may_act:
                raise may_only_look(visit.caller)
            return await self.handler(visit)

        return Route(self.path, answer, methods=["POST"] if self.is_action else ["GET"])


def _to_login(visit: Visit) -> Response:
    if visit.request.method not in READING:
        raise ProblemError(Code.UNAUTHORIZED, "Your session has ended. Log in, and repeat what you did.")
    url = visit.request.url
    wanted = f"{url.path}?{url.query}" if url.query else url.path
    return RedirectResponse(f"/login?next={quote(wanted, safe='')}", HTTPStatus.SEE_OTHER)


PAGES = (
    PageRoute("/", overview.show),
    PageRoute("/login", login.show, is_open=True),
    PageRoute("/login", login.log_in, is_action=True, is_open=True),
    PageRoute("/logout", login.log_out, is_action=True, is_open=True),
    PageRoute("/destinations", destinations.show_all),
    PageRoute("/destinations/one", destinations.show_one),
    PageRoute("/destinations/pause", destinations.pause, is_action=True),
    PageRoute("/destinations/resume", destinations.resume, is_action=True),
    PageRoute("/destinations/throttle", destinations.throttle, is_action=True),
    PageRoute("/destinations/unthrottle", destinations.unthrottle, is_action=True),
    PageRoute("/destinations/breaker", destinations.breaker, is_action=True),
    PageRoute("/destinations/error", destinations.retry_error, is_action=True),
    PageRoute("/pauses/pause", destinations.pause_scope, is_action=True),
    PageRoute("/pauses/resume", destinations.resume_scope, is_action=True),
    PageRoute("/retries", retries.show_all),
    PageRoute("/retries/jobs", retries.prepare, is_action=True),
    PageRoute("/retries/{retry_id}", retries.show_one),
    PageRoute("/retries/{retry_id}/cancel", retries.cancel, is_action=True),
    PageRoute("/retries/{retry_id}/retry-now", retries.retry_now, is_action=True),
    PageRoute("/retries/{retry_id}/redrive", retries.redrive_edited, is_action=True),
    PageRoute("/stuck", stuck.show),
    PageRoute("/stuck/recover", stuck.recover, is_action=True),
    PageRoute("/review", review.show_groups),
    PageRoute("/review/selection", review.show_selection),
    PageRoute("/review/redrive", review.redrive, is_action=True),
    PageRoute("/review/discard", review.discard, is_action=True),
    PageRoute("/review/jobs", review.show_jobs),
    PageRoute("/review/jobs/{job_id}", review.show_job),
    PageRoute("/review/jobs/{job_id}/stop", review.stop_job, is_action=True),
    PageRoute("/review/jobs/{job_id}/resume", review.resume_job, is_action=True),
    PageRoute("/review/jobs/{job_id}/abandon", review.abandon_job, is_action=True),
    PageRoute("/actions", actions.show),
    PageRoute("/policies", policies.show),
    PageRoute("/statistics", statistics.show),
    PageRoute("/statistics/export", statistics.export),
    PageRoute("/topology", topology.show),
    PageRoute("/audit", audit.show),
    PageRoute("/audit/compare", audit.compare, is_action=True),
    PageRoute("/audit/recover", audit.recover, is_action=True),
    PageRoute("/audit/write-off", audit.write_off, is_action=True),
    PageRoute("/runbook", runbook.show),
)


class Dashboard:
    """ASGI middleware: answers requests for its own paths, and passes on all others."""

    def __init__(
        self, app: ASGIApp, rules: ApiRules, settings: Settings, context: OperatorContext, readings: Readings
    ) -> None:
        self._app = app
        self._rules = rules
        self._context = context
        tokens, key = settings.tokens, settings.dashboard_key
        secret = key.get_secret_value().encode() if key else None
        self._renderer = Renderer(
            readings, make_environment(), Sessions(tokens, secret), settings.service_name, with_login=bool(tokens)
        )
        self._pages = Starlette(
            routes=[*(page.route() for page in PAGES), *static.ROUTES],
            exception_handlers={
                ProblemError: _on_error,
                TarryError: _on_error,
                HTTPException: _on_error,
            },
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_ours(scope["path"]):
            await self._app(scope, receive, send)
            return
        headers = [(name.encode(), value.encode()) for name, value in SECURITY.items()]
        if scope["path"] == live.PATH and scope["method"] == "GET" and self._rules.streams < MOST_STREAMS:
            self._rules.streams += 1
            try:
                await live.stream(scope, receive, send, self._part, headers)
            finally:
                self._rules.streams -= 1
            return
        reply = await self._reply(scope, receive)
        if b"cache-control" not in dict(reply.headers):
            headers.append((b"cache-control", b"no-store"))
        await reply.with_headers(*headers).send(send)

    async def _part(self, scope: Scope) -> HttpReply:
        """The changing part of one page, for its caller as of now."""
        visit = Visit(Request(scope), self._renderer, LOCAL, None, None, is_live=True)
        try:
            self._identify(visit)
            scope["state"] = {"visit": visit}
            if visit.caller is None:
                return HttpReply.from_response(Response(status_code=HTTPStatus.UNAUTHORIZED))
            request = HttpRequest(scope, visit.request.headers, b"")
            return await self._rules.in_time("GET", request.pass_to(self._pages), "")
        except Exception as error:  # noqa: BLE001 - as for a page
            return HttpReply.from_response(error_page(visit, error))

    async def _reply(self, scope: Scope, receive: Receive) -> HttpReply:
        visit = Visit(Request(scope), self._renderer, LOCAL, None, None)
        try:
            if not static.is_static(scope["path"]):
                bounced = self._identify(visit)
                if bounced is not None:
                    return HttpReply.from_response(bounced)
            scope.setdefault("state", {})["visit"] = visit
            request = await read(scope, receive, min(self._rules.body_limit, LARGEST_FORM), FORM)
            if request.method not in READING:
                ORIGIN.set(f"dashboard {_address_of(visit.request).removeprefix('@')}")
                visit.form = _form(request.body)
                _check_form(visit)
            return await self._rules.in_time(
                request.method, self._handle(visit, request), "the action log shows its outcome."
            )
        except Exception as error:  # noqa: BLE001 - the last resort: the page has an id, the log the details
            return HttpReply.from_response(error_page(visit, error))

    async def _handle(self, visit: Visit, request: HttpRequest) -> HttpReply:
        reply = await request.pass_to(self._pages)
        if request.method not in READING:
            call = f"{request.method} {request.path}"
            log.info("dashboard", caller=visit.caller.actor() if visit.caller else None, call=call, status=reply.status)
        return reply

    def _identify(self, visit: Visit) -> Response | None:
        """Finds the session and the caller. A link on a page of another site comes without the cookie of a session:
        such a visit is answered with a page that opens the same address again, from here.
        """
        headers = visit.request.headers
        is_link = visit.request.method in READING and headers.get("sec-fetch-mode") == "navigate"
        if is_link and headers.get("sec-fetch-site") == "cross-site":
            return visit.render("again.html", address=str(visit.request.url.replace(scheme="", netloc="")))
        sessions = self._renderer.sessions
        if not self._renderer.with_login:
            visit.caller = by_address(headers)
        else:
            found = sessions.read(visit.request.cookies.get(SESSION, ""))
            visit.session = found or sessions.begin()
            visit.caller = _caller_of(visit.session, sessions)
        self._rules.count(visit.caller.name if visit.caller else _address_of(visit.request))
        if visit.caller is not None:
            visit.ops = operations_of(visit.caller, self._context)
        return None


def _caller_of(session: Session, sessions: Sessions) -> Caller | None:
    token = sessions.token_of(session)
    return None if token is None else Caller(token.name, token.role, session.person, token.scope)


def _address_of(request: Request) -> str:
    return f"@{request.client.host if request.client else '?'}"


def _form(body: bytes) -> Mapping[str, str]:
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"))
    except ValueError:
        raise ProblemError(Code.INVALID_REQUEST, "The form is not readable.") from None


def _check_form(visit: Visit) -> None:
    """Refuses a form that was not made by a page of this session, so that no page of another site can act."""
    given, wanted = visit.form.get("form_key", ""), visit.renderer.sessions.form_key(visit.session)
    site = visit.request.headers.get("sec-fetch-site", "same-origin")
    if not secrets.compare_digest(given.encode(), wanted.encode()) or site not in {"same-origin", "none"}:
        raise ProblemError(
            Code.FORBIDDEN,
            "This form is not of your current session, which may have ended since the page was made. Nothing was done. "
            "Open the page again, and repeat what you did.",
        )


async def _on_error(request: Request, error: Exception) -> Response:
    return error_page(request.state.visit, error)


def error_page(visit: Visit, error: Exception) -> Response:
    problem = _problem_of(visit.request, error)
    title = TITLES.get(problem.status, problem.title)
    is_filter = visit.request.method in READING and problem.status == HTTPStatus.UNPROCESSABLE_ENTITY
    back = visit.request.url.path if is_filter else visit.form_page
    answer = visit.render("error.html", problem.status, problem=problem, title=title, back=back)
    answer.headers.update(getattr(error, "headers", None) or {})
    return answer


def _problem_of(request: Request, error: Exception) -> Problem:
    """Known errors have a status and say what to do; others are internal errors."""
    if isinstance(error, ProblemError):
        return error.problem
    if isinstance(error, TarryError) and not is_internal(error):
        return problem_of(error)
    if isinstance(error, HTTPException):
        status = HTTPStatus(error.status_code)
        codes = {HTTPStatus.NOT_FOUND: Code.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED: Code.METHOD_NOT_ALLOWED}
        return make_problem(codes.get(status, Code.INVALID_REQUEST), f"There is no page {request.url.path}.", status)
    return failure(f"{request.method} {request.url.path}", error, secrets.token_hex(6))
