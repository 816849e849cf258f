"""Destinations: their numbers, and the forms that pause, throttle and resume them."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.responses import Response

from tarry.errors import NotFoundError
from tarry.web.api.parameters import length_of
from tarry.web.api.queues import Pausing, Resuming, Throttling, Unthrottling
from tarry.web.dashboard.visit import Visit, validated


async def show_all(visit: Visit) -> Response:
    match = visit.asked("match") or "*"
    found = await visit.operations.destination_numbers(match)
    pauses = await visit.operations.show_pauses()
    paused = {one.destination: one for one in pauses.paused_destinations if one.is_destination}
    others = [one for one in pauses.paused_destinations if not one.is_destination]
    return visit.render("destinations.html", found=found, paused=paused, others=others, pauses=pauses, match=match)


async def show_one(visit: Visit) -> Response:
    name = visit.request.query_params.get("name", "")
    found = [one for one in await visit.operations.destination_numbers() if one.name == name]
    if not found:
        raise NotFoundError(f"No destination is called {name!r}.")
    paused = [one for one in (await visit.operations.show_pauses()).paused_destinations if one.destination == name]
    return visit.render("destination.html", one=found[0], paused=paused[0] if paused else None)


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
