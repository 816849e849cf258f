"""An operator stops the taking of requests: they wait in their queue, and what waits in tiers returns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tarry.operations.context import OperatorContext
from tarry.operations.intake import pause_intake, resume_intake
from tarry.topology.load import load
from tests.support.installation import Installation
from tests.support.router import IN_TIME, Router
from tests.support.waiting import wait_for

Start = Callable[..., Router]


def act(installation: Installation, action: Callable[..., object], **how: str) -> None:
    async def run() -> None:
        async with OperatorContext.open(
            load(installation.folder), installation.address, installation.dsn, actor="test"
        ) as context:
            await action(context, actor="alice@ops", **how)  # type: ignore[misc] # both are coroutines

    asyncio.run(run())


def test_requests_wait_while_the_intake_is_paused_and_returns_go_on(installation: Installation, start: Start) -> None:
    router = start().wait_ready()
    queue = installation.declare("quick.orders")
    installation.request(queue, "before")
    act(installation, pause_intake, reason="a bad deploy")
    wait_for(lambda: router.metric("tarry_intake_paused") == 1, what="the intake to be paused")
    installation.request(queue, "during")
    assert installation.take_ids(queue, 1) == ["before"]
    status, (note,) = router.ready()
    assert status == 200
    assert note.startswith("the intake was paused by alice@ops at ")
    assert note.endswith(": a bad deploy")
    assert router.metric("tarry_consuming") == 0
    assert installation.depth("retry.scheduled") == 1
    act(installation, resume_intake)
    assert installation.take_ids(queue, 1) == ["during"]
    router.wait_ready()
    assert router.stop() < IN_TIME


def test_a_paused_router_still_leaves_when_told(installation: Installation, start: Start) -> None:
    router = start().wait_ready()
    act(installation, pause_intake)
    wait_for(lambda: router.metric("tarry_intake_paused") == 1, what="the intake to be paused")
    assert router.stop() < IN_TIME
    assert router.process.returncode == 0
