"""A caller that dies in the middle of a cancel or a retry-now leaves a wish in the books; the sweeper goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from tarry.broker.management import Management
from tarry.control import copy, divert
from tarry.control.cancel import cancel, retry_now
from tarry.control.desk import Desk
from tarry.control.limits import Limits
from tarry.control.sweep import sweep
from tarry.control.waiting import find
from tarry.errors import ConflictError, MissingOnBrokerError
from tests.harness.waiting import wait_for
from tests.integration.control.hands import Hands
from tests.integration.control.witness import Witness
from tests.integration.router.serving import Place, Router, routers

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
def hands(place: Place, start: Callable[..., Router]) -> Hands:
    place.write_policies(POLICY)
    place.apply()
    place.origin("work")
    start().wait_ready()
    return Hands(place, Limits(linger=AT_ONCE))


def _waiting(hands: Hands, message: str) -> str:
    hands.place.request("work", message)
    found = hands.place.retry_of(message)
    wait_for(lambda: _row(hands, found, "state") == "scheduled", what="it to wait")
    return found


def _row(hands: Hands, retry: str, column: str) -> Any:
    with psycopg.connect(hands.place.dsn, row_factory=dict_row) as connection:
        row = connection.execute("select state, round from retry where id = %s", [retry]).fetchone()
    return row[column] if row else None


def _diversion(hands: Hands) -> tuple[str | None, bool]:
    """Its verdict, and whether it is over."""
    with psycopg.connect(hands.place.dsn) as connection:
        row = connection.execute("select verdict, unbound_at is not null from diversion").fetchone()
    assert row is not None
    return row[0], row[1]


def _told(hands: Hands) -> bool:
    """Whether the books know that the message was diverted."""
    with psycopg.connect(hands.place.dsn) as connection:
        row = connection.execute("select diverted_at is not null from diversion").fetchone()
    assert row is not None
    return bool(row[0])


def _bindings(hands: Hands) -> int:
    return len(Management(hands.place.address).bindings_from("retry.gate.cancelled"))


def _sweep(hands: Hands) -> None:
    hands.do(lambda desk: sweep(desk, left_for=AT_ONCE))


class DiedError(Exception):
    """The process, just there."""


def _dies(*_: object, **__: object) -> Coroutine[Any, Any, Any]:
    raise DiedError


@pytest.mark.parametrize("kind", ["cancel", "retry_now"])
def test_a_wish_that_was_never_bound_is_carried_out(hands: Hands, kind: Any) -> None:
    retry = _waiting(hands, "m")

    async def half(desk: Desk) -> None:
        await divert.ask(desk, await find(desk, retry, kind), kind, "ann", "why")

    with Witness(hands.place.amqp_url, "work") as witness:
        hands.do(half)
        _sweep(hands)
        done = {"cancel": ("cancelled", "cancelled"), "retry_now": ("retried", "returned")}[kind]
        assert _diversion(hands)[0] == done[0]
        wait_for(lambda: _row(hands, retry, "state") == done[1], what=f"it to be {done[1]}")
        wait_for(lambda: _swept(hands), what="the original to come due, and its binding to go")
    assert witness.rounds() == ({} if kind == "cancel" else {"m": [2]})


def _swept(hands: Hands) -> bool:
    _sweep(hands)
    return _diversion(hands)[1]


def test_a_copy_that_was_never_sent_is_sent(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    retry = _waiting(hands, "m")
    with Witness(hands.place.amqp_url, "work") as witness:
        with monkeypatch.context() as patch:
            patch.setattr(Desk, "publish", _dies)
            with pytest.raises(DiedError):
                hands.do(lambda desk: retry_now(desk, retry, actor="ann"))
        assert (_row(hands, retry, "state"), _row(hands, retry, "round")) == ("scheduled", 2)
        assert witness.seen == []
        _sweep(hands)
        wait_for(lambda: witness.rounds() == {"m": [2]}, what="the copy to arrive")
        wait_for(lambda: _swept(hands), what="the original to come due, and its binding to go")
    assert (_diversion(hands)[0], witness.rounds()) == ("retried", {"m": [2]})


def test_a_copy_that_was_sent_and_seen_is_not_sent_again(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    retry = _waiting(hands, "m")
    with Witness(hands.place.amqp_url, "work") as witness:
        with monkeypatch.context() as patch:
            patch.setattr(copy, "_confirmed", _dies)
            with pytest.raises(DiedError):
                hands.do(lambda desk: retry_now(desk, retry, actor="ann"))
        wait_for(lambda: _row(hands, retry, "state") == "returned", what="the tap to see it")
        wait_for(lambda: _swept(hands), what="it to be swept")
    assert (_diversion(hands)[0], witness.rounds()) == ("retried", {"m": [2]})


def test_without_a_word_the_answer_is_pending_and_the_sweeper_has_the_last_one(place: Place) -> None:
    """No router runs: the message is diverted, and nobody says so."""
    hands = Hands(place, Limits(margin=timedelta(hours=1), word=timedelta(milliseconds=200), linger=AT_ONCE))
    place.origin("quick.a")
    with routers(place) as start:
        router = start().wait_ready()
        place.request("quick.a", "m", retry_after_ms=8_000)
        retry = place.retry_of("m")
        wait_for(lambda: _row(hands, retry, "state") == "scheduled", what="it to wait")
        router.kill()
        assert hands.do(lambda desk: cancel(desk, retry, actor="ann")).answer == "pending"
        with pytest.raises(ConflictError, match="a cancel was asked for by ann"):
            hands.do(lambda desk: retry_now(desk, retry, actor="bob"))
        wait_for(lambda: place.depth("retry.cancelled") == 1, what="it to be diverted")
        start().wait_ready()
        wait_for(lambda: _told(hands), what="the word")  # a sweeper with so little patience would not wait for it
        wait_for(lambda: _swept(hands), what="the binding to go")
    assert (_diversion(hands)[0], _row(hands, retry, "state")) == ("cancelled", "cancelled")


def test_an_old_broker_has_a_cap_and_says_so(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    _waiting(hands, "a")
    _waiting(hands, "b")

    async def old(_: object) -> tuple[int, ...]:
        await asyncio.sleep(0)
        return (3, 10, 8)

    monkeypatch.setattr("tarry.control.binder.Binder.version", old)
    few = Hands(hands.place, Limits(most_cancels=1))
    few.do(lambda desk: cancel(desk, "a", actor="ann"))
    with pytest.raises(ConflictError, match=r"1 cancels and retry-nows are under way.*before 3\.11.*more than 1"):
        few.do(lambda desk: cancel(desk, "b", actor="ann"))


def test_a_binding_that_the_broker_refuses_leaves_nothing_behind(hands: Hands) -> None:
    retry = _waiting(hands, "m")
    hands.place.channel.queue_delete("retry.cancelled")
    with pytest.raises(MissingOnBrokerError, match=r"no queue 'retry\.cancelled'"):
        hands.do(lambda desk: cancel(desk, retry, actor="ann"))
    assert _diversion(hands) == ("dropped", True)
    assert _row(hands, retry, "state") == "scheduled"
    assert _bindings(hands) == 0
    hands.place.apply()
    assert hands.do(lambda desk: cancel(desk, retry, actor="ann")).answer in ("cancelled", "pending")
