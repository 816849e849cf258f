"""Destinations: their numbers, and the forms that pause, throttle and resume them."""

from __future__ import annotations

from datetime import timedelta
from typing import cast, get_args
from urllib.parse import urlencode

from starlette.responses import Response

from tarry.analytics.rollups import Dimension, StatisticFilter, StatisticSpan
from tarry.audit.status import AttemptOutcomes
from tarry.errors import Code, NotFoundError
from tarry.operations.destinations import is_glob, matching
from tarry.operations.pause import Scope, describe_target
from tarry.operations.statistics import StatisticRow
from tarry.web.api.parameters import length_of
from tarry.web.api.problems import ProblemError
from tarry.web.api.queues import Pausing, Resuming, Throttling, Unthrottling
from tarry.web.dashboard.visit import STALE, Visit, validated

INTAKE = "intake"
SCOPES = {
    "policy": "a policy",
    "job-type": "a job type",
    "automatic-retries": "all automatic retries",
    "stuck-recovery": "the recovery of stuck attempts",
    INTAKE: "the intake of requests",
}
"""What can be paused besides destinations."""

DAY = timedelta(days=1)
"""The time whose statistics by attempt a page shows."""

WITHIN = timedelta(hours=1)
"""The time whose outcomes are counted by attempt, if that is asked for: it reads the history of a day."""


async def show_all(visit: Visit) -> Response:
    match = visit.asked("match") or "*"
    if visit.is_limited:
        found = await visit.operations.destination_numbers(match)
    else:
        everything = {one.name: one for one in await visit.shared.destinations.get(STALE)}
        found = [everything[name] for name in matching(match, everything)]
    pauses = await visit.operations.show_pauses()
    paused = {one.destination: one for one in pauses.paused_destinations if one.is_destination}
    others = [one for one in pauses.paused_destinations if not one.is_destination]
    breakers = {one.queue: one for one in await visit.operations.list_breakers()}
    return visit.render(
        "destinations.html",
        found=found,
        paused=paused,
        others=others,
        pauses=pauses,
        breakers=breakers,
        match=match,
        scopes=SCOPES,
    )


async def show_one(visit: Visit) -> Response:
    name = visit.request.query_params.get("name", "")
    found = [one for one in await visit.operations.destination_numbers(name) if one.name == name]
    if not found:
        raise NotFoundError(f"No destination is called {name!r}.")
    paused = [one for one in (await visit.operations.show_pauses()).paused_destinations if one.destination == name]
    breakers = [one for one in await visit.operations.list_breakers() if one.queue == name]
    return visit.render(
        "destination.html",
        one=found[0],
        paused=paused[0] if paused else None,
        breaker=breakers[0] if breakers else None,
        given_up=(await visit.operations.list_given_up(queue=name)).given_up,
        day=await _day(visit, name),
        attempts=await _attempts(visit, name),
    )


async def _day(visit: Visit, name: str) -> list[StatisticRow]:
    """Its statistics by attempt. Those of a name that has characters of a glob cannot be asked for alone."""
    if visit.is_live or is_glob(name):
        return []
    wanted = StatisticFilter(visit.now - DAY, visit.now, StatisticSpan.HOUR, queue=name)
    found = await visit.operations.statistics(wanted, [Dimension.ATTEMPT])
    return sorted((one for one in found.rows if one.attempt and one.returned), key=lambda one: one.attempt or 0)


async def _attempts(visit: Visit, name: str) -> list[AttemptOutcomes] | None:
    wanted = visit.asked("attempts") and not visit.is_live
    return await visit.operations.outcomes(WITHIN, queue=name) if wanted else None


async def pause_scope(visit: Visit) -> Response:
    """Pauses a policy, a job type, a type, or the intake."""
    scope, name = visit.named("scope"), visit.given("name") or ""
    wanted = validated(Pausing, {"reason": visit.given("reason"), "lasts": visit.given("lasts")})
    lasts = length_of(wanted.lasts) if wanted.lasts else None
    if scope == INTAKE:
        await visit.operations.pause_intake(reason=wanted.reason, lasts=lasts)
        return visit.done("Paused the intake.", "/destinations")
    done = await visit.operations.pause(name, scope=_scope(scope), **wanted.options())
    problems = "".join(f" Not yet {label}: {why}" for label, why in done.problems.items())
    return visit.done(f"Paused {describe_target(done.scope, name)}.{problems}", "/destinations")


async def resume_scope(visit: Visit) -> Response:
    scope, name = visit.named("scope"), visit.form.get("name", "")
    if scope == INTAKE:
        await visit.operations.resume_intake(reason=visit.given("reason"))
        return visit.done("The intake is resumed.", "/destinations")
    done = await visit.operations.resume(name, scope=_scope(scope), canary=bool(visit.given("canary")))
    return visit.done(f"Resuming {describe_target(done.scope, name)}, at {done.rate} a second.", "/destinations")


def _scope(given: str) -> Scope:
    scope = next((one for one in get_args(Scope) if one == given and one in SCOPES), None)
    if scope is None:
        raise ProblemError(Code.INVALID_REQUEST, f"There is nothing of the kind {given!r} to pause.")
    return cast("Scope", scope)


async def breaker(visit: Visit) -> Response:
    """Keeps it open or closed, or lets it decide again."""
    name, verb = visit.named("name"), _one_of(visit.named("verb"), "open", "close", "free")
    reason = validated(Pausing, {"reason": visit.given("reason")}).reason
    if verb == "open":
        await visit.operations.open_breaker(name, reason=reason)
    elif verb == "close":
        await visit.operations.close_breaker(name, reason=reason or "")
    else:
        await visit.operations.free_breaker(name, reason=reason)
    done = {"open": "is kept open", "close": "is kept closed"}.get(verb, "decides by itself again")
    return visit.done(f"The breaker of {name} {done}.", _page_of(name))


def _one_of(verb: str, *verbs: str) -> str:
    if verb not in verbs:
        raise ProblemError(Code.INVALID_REQUEST, f"There is no {verb!r}: choose one of {', '.join(verbs)}.")
    return verb


async def retry_error(visit: Visit) -> Response:
    """Retries an error again that is given up, or for ever."""
    name, error = visit.named("name"), visit.named("error")
    reason = validated(Pausing, {"reason": visit.given("reason")}).reason
    always = _one_of(visit.named("verb"), "again", "always") == "always"
    done = await visit.operations.retry_error(name, error, always=always, reason=reason)
    how = "is never given up" if always else "is retried, and judged by what happens from now on"
    return visit.done(f"The error {done.choice.error} of {name} {how}.", _page_of(name))


async def pause(visit: Visit) -> Response:
    name = visit.named("name")
    wanted = validated(Pausing, {"reason": visit.given("reason"), "lasts": visit.given("lasts")})
    done = await visit.operations.pause(name, **wanted.options())
    problems = "".join(f" Not yet {label}: {why}" for label, why in done.problems.items())
    return visit.done(f"Paused {name}.{problems}", _page_of(name))


async def resume(visit: Visit) -> Response:
    name = visit.named("name")
    wanted = validated(
        Resuming,
        {"rate": visit.given("rate"), "canary": bool(visit.given("canary")), "observe": visit.given("observe")},
    ).options()
    done = await visit.operations.resume(name, rate=wanted.rate, canary=wanted.canary, observe=wanted.observe)
    how = "with a canary, " if wanted.canary else ""
    kept = "".join(f" Still held: {label}, by its breaker." for label in done.breakers)
    return visit.done(f"Resuming {name}, {how}at {wanted.rate} a second.{kept}", _page_of(name))


async def throttle(visit: Visit) -> Response:
    name = visit.named("name")
    wanted = validated(Throttling, {one: visit.given(one) for one in ("rate", "reason", "lasts")})
    lasts = length_of(wanted.lasts) if wanted.lasts else None
    await visit.operations.throttle(name, rate=wanted.rate, reason=wanted.reason, lasts=lasts)
    return visit.done(f"At most {wanted.rate} returns a second to {name}.", _page_of(name))


async def unthrottle(visit: Visit) -> Response:
    name = visit.named("name")
    wanted = validated(Unthrottling, {"reason": visit.given("reason")})
    await visit.operations.unthrottle(name, reason=wanted.reason)
    return visit.done(f"The throttle of {name} has ended.", _page_of(name))


def _page_of(name: str) -> str:
    return f"/destinations/one?{urlencode({'name': name})}"
