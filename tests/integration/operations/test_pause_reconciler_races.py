"""Pauses that begin while others end, or are refused. No service runs: each test takes its steps itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest

from tarry.amqp.management import Management
from tarry.core.names import Destination
from tarry.errors import BrokerError, BrokerUnreachableError, ConflictError
from tarry.operations import pause as pause_module
from tarry.operations import pause_reconciler
from tarry.operations.context import OperatorContext
from tarry.operations.pause import Pause, Scope, active_pauses, pause, resume
from tarry.operations.pause_reconciler import PauseReconciler, Watchers
from tarry.operations.paused_destination import (
    assert_pause,
    assert_throttle,
    begin_pause,
    read_paused_destinations,
)
from tarry.operations.release import Release
from tarry.operations.throttle import set_rate, throttle
from tests.integration.operations.operators import Operator
from tests.support.installation import Installation
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series

EXPIRED = timedelta(0)


@pytest.fixture
def operator(installation: Installation) -> Operator:
    return Operator(installation)


async def _pause(context: OperatorContext, lasts: timedelta | None = None) -> None:
    await pause(context, "pdf", scope="job-type", actor="ann", lasts=lasts)


async def _read_then_pause(context: OperatorContext) -> list[Pause]:
    """Another operator pauses right after the pauses were read."""
    found = await active_pauses(context)
    await _pause(context)
    return found


async def _states(context: OperatorContext) -> list[str]:
    return [one.state for one in await read_paused_destinations(context)]


def _targets(pauses: Sequence[Pause]) -> list[tuple[str, bool]]:
    return [(one.target, one.is_over) for one in pauses]


def test_a_pause_that_expires_does_not_release_what_was_paused_again(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pause_reconciler, "active_pauses", _read_then_pause)

    async def expire(context: OperatorContext) -> tuple[list[str], list[Pause]]:
        await _pause(context, EXPIRED)
        reconciler = PauseReconciler(context)
        try:
            await reconciler.look()
        finally:
            await reconciler.close()
        return await _states(context), await active_pauses(context)

    states, left = operator.do(expire)
    assert states == ["holding"]
    assert set(_targets(left)) == {("job type pdf", False)}


@pytest.mark.parametrize(("scope", "name", "label"), [("queue", "orders", "orders"), ("job-type", "pdf", "~type:pdf")])
def test_a_pause_is_completed_by_the_service_if_its_command_was_killed(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, scope: Scope, name: str, label: str
) -> None:
    class KilledError(Exception): ...

    async def killed(*_: object) -> None:
        raise KilledError

    operator.installation.declare("orders")
    operator.installation.channel.queue_bind("orders", "retry.deliver", ORDERS.key)
    monkeypatch.setattr(pause_module, "_hold_all", killed)

    async def act(context: OperatorContext) -> list[tuple[str, str, bool]]:
        with pytest.raises(KilledError):
            await pause(context, name, scope=scope, actor="ann")
        reconciler = PauseReconciler(context)
        try:
            await reconciler.look()
        finally:
            await reconciler.close()
        return [(one.label, one.state, one.bound_at is not None) for one in await read_paused_destinations(context)]

    assert operator.do(act) == [(label, "holding", True)]


def test_a_pause_that_expires_releases_what_it_held(operator: Operator) -> None:
    async def expire(context: OperatorContext) -> tuple[list[str], list[Pause]]:
        await _pause(context, EXPIRED)
        await PauseReconciler(context)._end()
        return await _states(context), await active_pauses(context)

    assert operator.do(expire) == (["releasing"], [])


def test_a_resume_is_refused_if_another_pause_has_just_begun(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(context: OperatorContext) -> tuple[list[str], list[Pause]]:
        await _pause(context)
        with monkeypatch.context() as race:
            race.setattr(pause_module, "active_pauses", _read_then_pause)
            with pytest.raises(ConflictError, match="Nothing was resumed: job type pdf has just been paused again"):
                await resume(context, "pdf", scope="job-type", actor="bob")
        return await _states(context), await active_pauses(context)

    states, left = operator.do(act)
    assert (states, len(left)) == (["holding"], 2)


def test_a_refused_pause_does_not_stop_a_release(operator: Operator) -> None:
    """The installation lost its gates after the first pause, as by an apply of an earlier version."""

    async def act(context: OperatorContext) -> tuple[list[str], list[Pause]]:
        await _pause(context)
        await resume(context, "pdf", scope="job-type", actor="ann")
        operator.installation.channel.exchange_bind("retry.deliver", "retry.arrive", "")
        with pytest.raises(BrokerError, match="tarry topology apply"):
            await _pause(context)
        return await _states(context), await active_pauses(context)

    assert operator.do(act) == (["releasing"], [])


def test_a_pause_of_a_gate_is_refused_without_the_management_api(operator: Operator) -> None:
    """Whether a former binding would deliver its messages at once is not known."""

    async def act(context: OperatorContext) -> tuple[list[str], list[Pause]]:
        context.address = replace(context.address, management="http://127.0.0.1:9")
        with pytest.raises(BrokerUnreachableError, match="Nothing was paused: without the management API"):
            await _pause(context)
        return await _states(context), await active_pauses(context)

    assert operator.do(act) == ([], [])


ORDERS = Destination("queue", "orders")


async def _throttled(context: OperatorContext) -> tuple[str, int | None, bool]:
    """State and throttle of `orders`, and whether it is bound according to the store."""
    [one] = await read_paused_destinations(context)
    return one.state, one.throttle, one.bound_at is not None


def _is_bound(operator: Operator) -> bool:
    found = Management(operator.installation.address).bindings_from("retry.gate.held")
    return ORDERS.key in {one["routing_key"] for one in found}


def test_a_throttle_that_begins_while_a_release_ends_is_bound_again(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the removal of the binding and the end of the release."""
    unbind = Release._unbind

    async def unbind_then_throttle(self: Release, *arguments: object) -> bool:
        done = await unbind(self, *arguments)  # type: ignore[arg-type]
        await set_rate(self.context, ORDERS.label, 7)
        return done

    monkeypatch.setattr(Release, "_unbind", unbind_then_throttle)

    async def act(context: OperatorContext) -> list[tuple[str, int | None, bool]]:
        await set_rate(context, ORDERS.label, 5)
        await assert_throttle(context, ORDERS)
        await set_rate(context, ORDERS.label, None)
        [paused] = await read_paused_destinations(context)
        await Release(context, paused).run()
        found = [await _throttled(context)]
        assert not _is_bound(operator)
        [paused] = await read_paused_destinations(context)
        again = asyncio.create_task(Release(context, paused).run())
        await asyncio.to_thread(wait_for, lambda: _is_bound(operator), what="the binding")
        bound = "select bound_at is not null from paused_destination"  # stored after the binding
        await asyncio.to_thread(wait_for, lambda: operator.installation.rows(bound) == [(True,)], what="its record")
        again.cancel()
        await asyncio.wait([again])
        return [*found, await _throttled(context)]

    assert operator.do(act) == [("releasing", 7, False), ("releasing", 7, True)]
    assert _is_bound(operator)


def test_a_throttle_does_not_unbind_or_release_what_is_paused(operator: Operator) -> None:
    """A service that read the row before the pause takes its next steps after it."""

    async def act(context: OperatorContext) -> list[tuple[str, int | None, bool]]:
        await set_rate(context, ORDERS.label, 5)
        await assert_throttle(context, ORDERS)
        [paused] = await read_paused_destinations(context)
        await begin_pause(context, ORDERS)
        await Release(context, paused).run()  # ends at once
        found = [await _throttled(context)]
        await set_rate(context, ORDERS.label, 9)  # the rate changes while it is paused
        return [*found, await _throttled(context)]

    assert operator.do(act) == [("holding", 5, True), ("holding", 9, True)]
    recheck = Management(operator.installation.address).bindings_from("retry.recheck.held")
    assert [one["routing_key"] for one in recheck] == [ORDERS.key]


ONE_HELD = """
insert into retry (id, queue, exchange, routing_key, state, round, retry_count, first_failed_at, due_at, expected_at)
values (gen_random_uuid(), 'orders', '', 'orders', 'held', 1, 0, now(), now(), now())
returning 1
"""
EACH_HELD_FAILS = """
create or replace function tarry_holds(
    kind text, label text, name text, queue text, exchange text, policy text, properties bytea
) returns boolean language plpgsql as $$ begin raise exception 'counted' using errcode = '57014'; end $$
"""


def test_no_pass_counts_held_retries_of_which_there_can_be_millions(operator: Operator) -> None:
    """Throttled messages would not return while the count takes too long."""
    operator.installation.rows(ONE_HELD)
    shown: list[int | None] = []

    async def act(context: OperatorContext) -> None:
        await throttle(context, "orders", rate=50, actor="ann")
        await pause(context, "orders", actor="ann")
        watchers = Watchers(on_look=lambda found: shown.extend(one.held for one in found))
        reconciler = PauseReconciler(context, watchers=watchers)
        try:
            await reconciler.look()
            assert reconciler._counting
            await reconciler._counting
            await reconciler.look()
            with psycopg.connect(operator.installation.dsn) as connection:
                connection.execute(EACH_HELD_FAILS)
            await reconciler.look()
            await reconciler._counting
            await reconciler.look()
        finally:
            await reconciler.close()

    operator.do(act)
    assert shown[:2] == [None, 1]
    assert shown[-1] is None


def test_pause_reconciler_creates_only_bindings_that_the_broker_lacks(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Creating all of ten thousand paused destinations again would take minutes, in which nothing expires."""
    channel, asserted = operator.installation.channel, list[str]()
    queues = [operator.installation.declare(f"orders{number}") for number in range(4)]

    async def counting(context: OperatorContext, holder: Destination) -> None:
        asserted.append(holder.label)
        await assert_pause(context, holder)

    async def act(context: OperatorContext) -> list[list[str]]:
        for queue in queues:
            await begin_pause(context, Destination("queue", queue))
        monkeypatch.setattr(pause_reconciler, "assert_pause", counting)
        found = []
        for exchange in (None, "retry.gate.held", "retry.recheck.held"):
            asserted.clear()
            if exchange is not None:
                channel.queue_unbind("retry.held.orders2", exchange, Destination("queue", "orders2").key)
            reconciler = PauseReconciler(context)
            await reconciler.look()
            await reconciler.close()
            found.append(list(asserted))
        return found

    assert operator.do(act) == [[], ["orders2"], ["orders2"]]
    assert operator.installation.api("bindings/{vhost}/e/retry.gate.held/q/retry.held.orders2")
    assert operator.installation.api("bindings/{vhost}/e/retry.recheck.held/q/retry.held.orders2")
