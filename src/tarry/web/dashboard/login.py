"""Log in with a token of the API, and log out."""

from __future__ import annotations

import structlog
from pydantic import BaseModel
from starlette.responses import RedirectResponse, Response

from tarry.errors import Code
from tarry.settings.tokens import find
from tarry.web.api.parameters import Text
from tarry.web.api.problems import ProblemError
from tarry.web.dashboard.visit import Visit, local_path, validated

log = structlog.get_logger()


class Person(BaseModel):
    """Who uses the token."""

    name: Text | None = None


async def show(visit: Visit) -> Response:
    if visit.caller is not None:
        return RedirectResponse(local_path(visit.asked("next")), 303)
    answer = visit.render("login.html", next=local_path(visit.asked("next")))
    visit.keep(answer, visit.session)
    return answer


async def log_in(visit: Visit) -> Response:
    """A new session, so that nobody can prepare the id of a session for somebody else."""
    token = find(visit.renderer.sessions.tokens, visit.given("token") or "")
    if token is None:
        client = visit.request.client
        log.warning("dashboard login refused", address=client.host if client else "?")
        raise ProblemError(Code.UNAUTHORIZED, "This is not a valid token. `tarry token new` creates one.")
    person = validated(Person, {"name": visit.given("person")}).name
    session = visit.renderer.sessions.begin(token, person)
    log.info("dashboard login", token=token.name, person=person)
    return visit.log_in(session, local_path(visit.given("next")))


async def log_out(visit: Visit) -> Response:
    return visit.log_out("/login")
