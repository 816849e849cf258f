"""An operator stops the taking of requests: they wait in their queue, and what waits in tiers returns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tarry.control.desk import Desk
from tarry.control.intake import pause_intake, resume_intake
from tarry.topology.load import load
from tests.harness.waiting import wait_for
from tests.integration.router.serving import IN_TIME, Place, Router

Start = Callable[..., Router]


def act(place: Place, action: Callable[..., object], **how: str) -> None:
    async def run() -> None:
        async with Desk.open(load(place.folder), place.address, place.dsn, actor="test") as desk:
            await action(desk, actor="alice@ops", **how)  # type: ignore[misc] # both are coroutines

    asyncio.run(run())


def test_requests_wait_while_the_intake_is_paused_and_returns_go_on(place: Place, start: Start) -> None:
    router = start().wait_ready()
    queue = place.origin("quick.orders")
    place.request(queue, "before")
    act(place, pause_intake, reason="a bad deploy")
    wait_for(lambda: router.metric("tarry_intake_paused") == 1, what="the intake to be paused")
    place.request(queue, "during")
    assert place.take(queue, 1) == ["before"]
    status, (note,) = router.ready()
    assert status == 200
    assert note.startswith("the intake was paused by alice@ops at ")
    assert note.endswith(": a bad deploy")
    assert router.metric("tarry_consuming") == 0
    assert place.depth("retry.scheduled") == 1
    act(place, resume_intake)
    assert place.take(queue, 1) == ["during"]
    router.wait_ready()
    assert router.stop() < IN_TIME


def test_a_paused_router_still_leaves_when_told(place: Place, start: Start) -> None:
    router = start().wait_ready()
    act(place, pause_intake)
    wait_for(lambda: router.metric("tarry_intake_paused") == 1, what="the intake to be paused")
    assert router.stop() < IN_TIME
    assert router.process.returncode == 0
