"""A caller that dies in the middle of a cancel or a retry-now leaves a row in the store; the reconciler finishes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from tarry.amqp.management import Management
from tarry.errors import Code, ConflictError, MissingOnBrokerError
from tarry.operations import cancel as copy
from tarry.operations import cancel as divert
from tarry.operations.cancel import cancel, find
from tarry.operations.cancel_reconciler import reconcile
from tarry.operations.context import OperatorContext, OperatorLimits
from tarry.operations.retry_now import retry_now
from tests.integration.operations.operators import Operator
from tests.integration.operations.witness import Witness
from tests.support.installation import Installation
from tests.support.router import Router, routers
from tests.support.waiting import wait_for

POLICY = """
[ladder]
levels = 4

[[policy]]
name = "default"
schedule = ["4s"]
max_retries = 3
"""
AT_ONCE = timedelta(0)


@pytest.fixture
def operator(installation: Installation, start: Callable[..., Router]) -> Operator:
    installation.write_policies(POLICY)
    installation.apply()
    installation.declare("work")
    start().wait_ready()
    return Operator(installation, OperatorLimits(linger=AT_ONCE))


def _waiting(operator: Operator, message: str) -> str:
    operator.installation.request("work", message)
    found = operator.installation.retry_of(message)
    wait_for(lambda: _row(operator, found, "state") == "scheduled", what="it to wait")
    return found


def _row(operator: Operator, retry: str, column: str) -> Any:
    with psycopg.connect(operator.installation.dsn, row_factory=dict_row) as connection:
        row = connection.execute("select state, round from retry where id = %s", [retry]).fetchone()
    return row[column] if row else None


def _diversion(operator: Operator) -> tuple[str | None, bool]:
    """Its verdict, and whether it is over."""
    with psycopg.connect(operator.installation.dsn) as connection:
        row = connection.execute("select verdict, unbound_at is not null from diversion").fetchone()
    assert row is not None
    return row[0], row[1]


def _told(operator: Operator) -> bool:
    """Whether the store knows that the message was diverted."""
    with psycopg.connect(operator.installation.dsn) as connection:
        row = connection.execute("select diverted_at is not null from diversion").fetchone()
    assert row is not None
    return bool(row[0])


def _bindings(operator: Operator) -> int:
    return len(Management(operator.installation.address).bindings_from("retry.gate.cancelled"))


def _sweep(operator: Operator) -> None:
    operator.do(lambda context: reconcile(context, left_for=AT_ONCE))


class DiedError(Exception):
    """The process, just there."""


def _dies(*_: object, **__: object) -> Coroutine[Any, Any, Any]:
    raise DiedError


@pytest.mark.parametrize("kind", ["cancel", "retry_now"])
def test_a_wish_that_was_never_bound_is_carried_out(operator: Operator, kind: Any) -> None:
    retry = _waiting(operator, "m")

    async def half(context: OperatorContext) -> None:
        await divert.ask(context, await find(context, retry, kind), kind, "ann", "why")

    with Witness(operator.installation.amqp_url, "work") as witness:
        operator.do(half)
        _sweep(operator)
        done = {"cancel": ("cancelled", "cancelled"), "retry_now": ("retried", "returned")}[kind]
        assert _diversion(operator)[0] == done[0]
        wait_for(lambda: _row(operator, retry, "state") == done[1], what=f"it to be {done[1]}")
        wait_for(lambda: _swept(operator), what="the original to come due, and its binding to go")
    assert witness.rounds() == ({} if kind == "cancel" else {"m": [2]})


def _swept(operator: Operator) -> bool:
    _sweep(operator)
    return _diversion(operator)[1]


def test_a_copy_that_was_never_sent_is_sent(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    retry = _waiting(operator, "m")
    with Witness(operator.installation.amqp_url, "work") as witness:
        with monkeypatch.context() as patch:
            patch.setattr(OperatorContext, "publish", _dies)
            with pytest.raises(DiedError):
                operator.do(lambda context: retry_now(context, retry, actor="ann"))
        assert (_row(operator, retry, "state"), _row(operator, retry, "round")) == ("scheduled", 2)
        assert witness.seen == []
        _sweep(operator)
        wait_for(lambda: witness.rounds() == {"m": [2]}, what="the copy to arrive")
        wait_for(lambda: _swept(operator), what="the original to come due, and its binding to go")
    assert (_diversion(operator)[0], witness.rounds()) == ("retried", {"m": [2]})


def test_a_copy_that_was_sent_and_seen_is_not_sent_again(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    retry = _waiting(operator, "m")
    with Witness(operator.installation.amqp_url, "work") as witness:
        with monkeypatch.context() as patch:
            patch.setattr(copy, "_confirmed", _dies)
            with pytest.raises(DiedError):
                operator.do(lambda context: retry_now(context, retry, actor="ann"))
        wait_for(lambda: _row(operator, retry, "state") == "returned", what="the tap to see it")
        wait_for(lambda: _swept(operator), what="it to be swept")
    assert (_diversion(operator)[0], witness.rounds()) == ("retried", {"m": [2]})


def test_without_an_outcome_it_is_pending_and_the_reconciler_decides(installation: Installation) -> None:
    """No router runs: the message is diverted, and nobody says so."""
    operator = Operator(
        installation,
        OperatorLimits(margin=timedelta(hours=1), outcome_timeout=timedelta(milliseconds=200), linger=AT_ONCE),
    )
    installation.declare("quick.a")
    with routers(installation) as start:
        router = start().wait_ready()
        installation.request("quick.a", "m", retry_after_ms=8_000)
        retry = installation.retry_of("m")
        wait_for(lambda: _row(operator, retry, "state") == "scheduled", what="it to wait")
        router.stop()  # a killed one may leave the request unacknowledged, and the next one would begin a round with it
        assert operator.do(lambda context: cancel(context, retry, actor="ann")).answer == "pending"
        with pytest.raises(ConflictError, match="a cancel was requested by ann"):
            operator.do(lambda context: retry_now(context, retry, actor="bob"))
        wait_for(lambda: installation.depth("retry.cancelled") == 1, what="it to be diverted")
        start().wait_ready()
        wait_for(
            lambda: _told(operator), what="the outcome"
        )  # a reconciler with so short a timeout would not wait for it
        wait_for(lambda: _swept(operator), what="the binding to go")
    assert (_diversion(operator)[0], _row(operator, retry, "state")) == ("cancelled", "cancelled")


def test_an_old_broker_has_a_cap_and_says_so(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    _waiting(operator, "a")
    _waiting(operator, "b")

    async def old(_: object) -> tuple[int, ...]:
        await asyncio.sleep(0)
        return (3, 10, 8)

    monkeypatch.setattr("tarry.operations.bindings.Bindings.version", old)
    few = Operator(operator.installation, OperatorLimits(most_cancels=1))
    few.do(lambda context: cancel(context, "a", actor="ann"))
    with pytest.raises(
        ConflictError, match=r"1 cancels and retry-nows are under way.*before 3\.11.*more than 1"
    ) as refused:
        few.do(lambda context: cancel(context, "b", actor="ann"))
    assert refused.value.code is Code.TOO_MANY_IN_PROGRESS


def test_a_binding_that_the_broker_refuses_leaves_nothing_behind(operator: Operator) -> None:
    retry = _waiting(operator, "m")
    operator.installation.channel.queue_delete("retry.cancelled")
    with pytest.raises(MissingOnBrokerError, match=r"no queue 'retry\.cancelled'"):
        operator.do(lambda context: cancel(context, retry, actor="ann"))
    assert _diversion(operator) == ("dropped", True)
    assert _row(operator, retry, "state") == "scheduled"
    assert _bindings(operator) == 0
    operator.installation.apply()
    assert operator.do(lambda context: cancel(context, retry, actor="ann")).answer in ("cancelled", "pending")
