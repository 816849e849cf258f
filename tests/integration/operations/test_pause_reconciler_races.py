"""Pauses that begin while others end, or are refused. No service runs: each test takes its steps itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from tarry.errors import BrokerError, BrokerUnreachableError, ConflictError
from tarry.operations import pause as pause_module
from tarry.operations import pause_reconciler
from tarry.operations.context import OperatorContext
from tarry.operations.pause import Pause, active_pauses, pause, resume
from tarry.operations.pause_reconciler import PauseReconciler
from tarry.operations.paused_destination import read_paused_destinations
from tests.integration.operations.operators import Operator
from tests.support.installation import Installation

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
