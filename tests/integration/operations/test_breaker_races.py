"""Breakers that change while others act. No service runs: each test takes its steps itself."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tarry.amqp.management import Management
from tarry.core.breaker import BreakerState
from tarry.errors import AuditError
from tarry.operations import release as release_module
from tarry.operations.breaker import open_breaker, read_breakers, show_breaker
from tarry.operations.breaker_reconciler import BreakerCounts, BreakerPass, KnownBreakers
from tarry.operations.context import OperatorContext
from tarry.operations.pause import active_pauses, pause
from tarry.operations.pause_reconciler import PauseReconciler
from tarry.operations.paused_destination import PausedDestination, read_paused_destinations
from tarry.operations.release import Release
from tarry.store.database import PostgresPool
from tests.integration.operations.operators import Operator
from tests.support.installation import Installation
from tests.support.proxy import Proxy

pytestmark = pytest.mark.one_series

QUEUE = "orders"
POLICY = """
[ladder]
levels = 4

[[policy]]
name = "guarded"
schedule = ["500ms"]
max_retries = 3
breaker = { of = 10, wait = "1h", longest_wait = "5h" }
"""


@pytest.fixture
def operator(installation: Installation) -> Operator:
    installation.write_policies(POLICY)
    installation.apply()
    installation.declare(QUEUE)
    installation.channel.queue_bind(QUEUE, "retry.deliver", f"~to:{QUEUE}")
    return Operator(installation)


async def _look(context: OperatorContext) -> dict[str, BreakerState]:
    return await BreakerPass(KnownBreakers(context), await active_pauses(context), await _paused(context)).run()


async def _paused(context: OperatorContext) -> dict[str, PausedDestination]:
    return {one.label: one for one in await read_paused_destinations(context)}


async def _count(context: OperatorContext, returned: int, failed: int) -> None:
    counts = BreakerCounts(context)
    counts.add_returned([QUEUE] * returned)
    counts.add_failed([QUEUE] * failed)
    await counts.store()


async def _end_wait(context: OperatorContext) -> None:
    async with context.store.transaction() as page:
        await page.change("free_breaker", destination=QUEUE)


async def _open(context: OperatorContext) -> None:
    """Open, and due to probe."""
    await open_breaker(context, QUEUE, actor="ann")
    await _end_wait(context)


async def _state(context: OperatorContext) -> tuple[str, str]:
    """Of the breaker, and of its destination."""
    return (await read_breakers(context))[QUEUE].state, (await _paused(context))[QUEUE].state


def test_breaker_does_not_release_what_was_paused_since_it_looked(operator: Operator) -> None:
    async def act(context: OperatorContext) -> tuple[str, str]:
        await _open(context)
        pauses = await active_pauses(context)
        await pause(context, QUEUE, actor="bob")  # after the pauses were read, before the destinations are
        await BreakerPass(KnownBreakers(context), pauses, await _paused(context)).run()
        return await _state(context)

    assert operator.do(act) == ("open", "holding")


def test_breaker_changes_once_if_two_processes_look(operator: Operator) -> None:
    """The lock can be lost without notice, and another process have it."""

    async def act(context: OperatorContext) -> tuple[timedelta | None, int]:
        await _count(context, 10, 10)
        paused = await _paused(context)
        await asyncio.gather(*(BreakerPass(KnownBreakers(context), [], paused).run() for _ in range(4)))
        row = (await read_breakers(context))[QUEUE]
        pauses = await context.store.rows("active_pauses")
        return row.wait, len(pauses)

    assert operator.do(act) == (timedelta(hours=1), 1)


def test_breaker_that_opens_without_the_broker_holds_when_it_is_back(operator: Operator) -> None:
    async def begin(context: OperatorContext) -> None:
        await context.binder.version()
        await _count(context, 10, 10)

    operator.do(begin)
    with Proxy(("127.0.0.1", operator.installation.address.port)) as proxy:
        proxy.refuse()
        assert operator.do(_look, through=proxy) == {QUEUE: BreakerState.OPEN}
    assert not _is_bound(operator)

    async def look(context: OperatorContext) -> None:
        reconciler = PauseReconciler(context)
        try:
            await reconciler.look()
        finally:
            await reconciler.close()

    operator.do(look)
    assert _is_bound(operator)


def _is_bound(operator: Operator) -> bool:
    return bool(Management(operator.installation.address).bindings_from("retry.gate.held"))


def test_probe_of_a_breaker_waits_for_a_message(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the release is not wanted any more: an empty held queue is no reason to close."""
    looks = iter([True, True, True, False, False])

    async def goes_on(_: Release) -> bool:
        return next(looks)

    monkeypatch.setattr(Release, "_goes_on", goes_on)
    monkeypatch.setattr(release_module, "LOOK_EVERY", 0.01)

    async def act(context: OperatorContext) -> tuple[bool, tuple[str, str]]:
        await _open(context)
        await _look(context)
        has_passed = await Release(context, (await _paused(context))[QUEUE])._canaries()
        return has_passed, await _state(context)

    assert operator.do(act) == (False, ("half_open", "releasing"))
    assert next(looks, None) is None  # it has looked each time


def test_breaker_holds_again_what_an_earlier_version_has_released(operator: Operator) -> None:
    async def act(context: OperatorContext) -> list[tuple[str, str]]:
        await open_breaker(context, QUEUE, actor="ann")
        sql = "update paused_destination set state = 'releasing', state_since = clock_timestamp() returning state"
        operator.installation.rows(sql)
        found = [await _state(context)]
        await _look(context)
        return [*found, await _state(context)]

    assert operator.do(act) == [("open", "releasing"), ("open", "holding")]


def test_breaker_counts_nothing_while_postgres_is_away(operator: Operator) -> None:
    """What could not be stored is forgotten, and does not open a breaker later."""

    async def act(context: OperatorContext) -> int:
        counts = BreakerCounts(context)
        counts.add_failed([QUEUE] * 50)
        store, context.store = context.store, PostgresPool("host=127.0.0.1 port=1", "nobody", patience=0.1)
        await context.store.open()
        with pytest.raises(AuditError):
            await counts.store()
        await context.store.close()
        context.store = store
        await counts.store()
        return (await show_breaker(context, QUEUE)).failed

    assert operator.do(act) == 0
