"""Pause and resume, with a real router, the watchers beside it, and an independent consumer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from tarry.audit.report import report
from tarry.audit.status import read_counts
from tarry.audit.verify import Auditor, Look, Rules
from tarry.broker.management import Management
from tarry.control.cancel import cancel, retry_now
from tarry.control.desk import Desk
from tarry.control.held import show_holds
from tarry.control.hold import read_holds
from tarry.control.holds import Paused, pause, resume
from tarry.control.pauses import active_pauses
from tarry.control.watch import Watcher
from tarry.core.names import Names
from tarry.errors import ConflictError, NotFoundError
from tests.harness.waiting import eventually, wait_for
from tests.integration.control.hands import Hands
from tests.integration.control.witness import Witness
from tests.integration.router.serving import QUORUM, Place, Router

NOW = timedelta(0)


@pytest.fixture
def hands(place: Place, start: Callable[..., Router]) -> Hands:
    start().wait_ready()
    return Hands(place)


def _pause(hands: Hands, pattern: str, lasts: timedelta | None = None) -> Paused:
    return hands.do(lambda desk: pause(desk, pattern, actor="ann", reason="it burns", lasts=lasts))


def _known(hands: Hands, queue: str) -> str:
    """A queue that tarry has delivered to before."""
    hands.place.origin(queue)
    hands.place.request(queue, f"first-{queue}")
    hands.place.wait_message(queue)
    return queue


def _order_of_holding(hands: Hands, queue: str) -> str:
    """A queue that gets a copy of what is held, in the order in which it is: routers do not keep that of requests."""
    hands.place.channel.queue_declare("order", durable=True, arguments=QUORUM)
    hands.place.channel.queue_bind("order", "retry.gate.held", f"~to:{queue}")
    return "order"


def _held(hands: Hands, count: int) -> None:
    """By the books, and by the broker."""
    wait_for(lambda: _count(hands, "held") == count, what=f"{count} to be held")


def _count(hands: Hands, state: str) -> int:
    with psycopg.connect(hands.place.dsn) as connection:
        row = connection.execute("select count(*) from retry where state = %s", [state]).fetchone()
    assert row is not None
    return int(row[0])


def _states(hands: Hands) -> dict[str, str]:
    return {hold.label: hold.state for hold in hands.do(read_holds)}


def _look(hands: Hands) -> tuple[Look, int]:
    with report(hands.place.dsn) as books:
        rules = Rules(grace=timedelta(seconds=1), settle=NOW, patience=8)
        auditor = Auditor(books, Management(hands.place.address), Names(), rules)
        return auditor.settled(), auditor.balance().lost


def test_what_comes_due_in_a_pause_waits_and_comes_in_order_after_it(hands: Hands) -> None:
    queue = _known(hands, "quick.a")
    with hands.watching(), Witness(hands.place.amqp_url, queue) as witness:
        assert _pause(hands, queue).destinations == [queue]
        order = _order_of_holding(hands, queue)
        for number in range(30):
            hands.place.request(queue, f"m{number:02}")
        _held(hands, 30)
        assert hands.place.depth(f"retry.held.{queue}") == 30
        assert witness.seen == []
        hands.do(lambda desk: resume(desk, queue, actor="ann"))
        wait_for(lambda: len(witness.seen) == 30, what="all to arrive")
        assert [one.message_id for one in witness.seen] == hands.place.take(order, 30)
        hands.place.channel.queue_delete(order)
        wait_for(lambda: _states(hands) == {}, what="the hold to be over")
        hands.place.request(queue, "after")
        wait_for(lambda: len(witness.seen) == 31, what="a message after the pause")
    assert all(one.at_ms >= one.due_ms for one in witness.seen)


def test_the_books_balance_during_a_pause_and_name_what_the_held_queue_lost(hands: Hands) -> None:
    queue = _known(hands, "quick.a")
    with hands.watching():
        _pause(hands, queue)
        for number in range(5):
            hands.place.request(queue, f"m{number}")
        _held(hands, 5)
        look, lost = _look(hands)
        assert (look.verdict.lost, look.verdict.late, lost) == (0, [], 0)
        with report(hands.place.dsn) as books:
            counts = read_counts(books, NOW)
        assert (counts.held, counts.overdue) == (5, 0)
        hands.place.take(f"retry.held.{queue}", 5)
        look, _ = _look(hands)
    assert {one.retry.message_id for one in look.verdict.missing} == {f"m{number}" for number in range(5)}
    assert {one.why for one in look.verdict.missing} == {"its held queue is empty"}


def test_a_pause_for_a_while_ends_by_itself(hands: Hands) -> None:
    queue = _known(hands, "quick.a")
    with Witness(hands.place.amqp_url, queue) as witness:
        _pause(hands, queue, timedelta(seconds=2))
        hands.place.request(queue, "m")
        wait_for(lambda: hands.place.depth(f"retry.held.{queue}") == 1, what="it to be held")
        with hands.watching():  # only now: it outlives a service that was not there
            wait_for(lambda: len(witness.seen) == 1, what="it to arrive")
            wait_for(lambda: _states(hands) == {}, what="the hold to be over")
    assert hands.do(active_pauses) == []


def test_a_glob_holds_what_appears_later_and_one_of_many_can_be_resumed_by_itself(hands: Hands) -> None:
    first = _known(hands, "quick.a")
    with hands.watching():
        assert _pause(hands, "[qs]*").destinations == [first]
        hands.place.request(hands.place.origin("slow.b"), "m")
        wait_for(lambda: _states(hands) == {first: "holding", "slow.b": "holding"}, what="the new one to be held")
        hands.do(lambda desk: resume(desk, first, actor="bob"))
        wait_for(lambda: _states(hands) == {"slow.b": "holding"}, what="only the other to be held")
        [behind] = hands.do(show_holds).holds
        assert [(one.pattern, one.actor, one.reason) for one in behind.pauses] == [("[qs]*", "ann", "it burns")]
        done = hands.do(lambda desk: resume(desk, "*", actor="bob"))
        assert (done.destinations, done.pauses_ended) == (["slow.b"], ["[qs]*"])


def test_two_pauses_of_one_destination_hold_until_both_are_over(hands: Hands) -> None:
    queue = _known(hands, "quick.a")
    with hands.watching(), Witness(hands.place.amqp_url, queue) as witness:
        _pause(hands, "quick.*")
        _pause(hands, queue, timedelta(seconds=1))
        hands.place.request(queue, "m")
        _held(hands, 1)
        wait_for(lambda: len(hands.do(active_pauses)) == 1, what="the short one to be over")
        assert (_states(hands), witness.seen) == ({queue: "holding"}, [])
        hands.do(lambda desk: resume(desk, "quick.*", actor="ann"))
        wait_for(lambda: len(witness.seen) == 1, what="it to arrive")


def test_what_is_held_can_be_cancelled_and_not_be_hurried(hands: Hands) -> None:
    queue = _known(hands, "quick.a")
    with hands.watching(), Witness(hands.place.amqp_url, queue) as witness:
        _pause(hands, queue)
        hands.place.request(queue, "goes")
        hands.place.request(queue, "stays")
        # In time for certain means: due well after the hold came into force, and these are due at once.
        _held(hands, 2)
        with pytest.raises(ConflictError, match=r"its destination is paused.*tarry resume quick\.a"):
            hands.do(lambda desk: retry_now(desk, "stays", actor="ann"))
        told = hands.do(lambda desk: cancel(desk, "goes", actor="ann", reason="wrong"))
        assert told.answer in ("cancelled", "pending")
        hands.do(lambda desk: resume(desk, queue, actor="ann"))
        wait_for(lambda: len(witness.seen) == 1, what="the other one to arrive")
        eventually(lambda: _fates(hands, {"goes": "cancelled", "stays": "returned"}))
    assert [one.message_id for one in witness.seen] == ["stays"]


def _fates(hands: Hands, wanted: dict[str, str]) -> None:
    with psycopg.connect(hands.place.dsn) as connection:
        rows = connection.execute("select message_id, state from retry where message_id = any(%s)", [list(wanted)])
        assert dict(rows.fetchall()) == wanted


def test_a_name_that_nobody_knows_is_a_slip_and_nothing_is_paused(hands: Hands) -> None:
    with pytest.raises(NotFoundError, match="No retry ever went to 'ordres'"):
        _pause(hands, "ordres")
    assert hands.do(active_pauses) == []
    with pytest.raises(NotFoundError, match="Nothing that matches 'ordres' is paused"):
        hands.do(lambda desk: resume(desk, "ordres", actor="ann"))


def test_a_binding_that_the_books_have_forgotten_is_found_and_shown(hands: Hands) -> None:
    """Postgres was restored from before the pause: nobody must wait for ever behind a binding that nobody knows of."""
    queue = _known(hands, "quick.a")
    _pause(hands, queue)
    with psycopg.connect(hands.place.dsn) as connection:
        connection.execute("truncate hold, pause cascade")

    async def two_looks(desk: Desk) -> None:
        watcher = Watcher(desk, assert_every=0)
        await watcher.look()
        assert await read_holds(desk) == []  # once may be a pause that is just ending
        await watcher.look()

    hands.do(two_looks)
    [found] = hands.do(read_holds)
    assert (found.label, found.state, found.problem) == (
        queue,
        "holding",
        "bound on the broker, and nobody knows why: resume it, or pause it anew",
    )
    with hands.watching():
        hands.do(lambda desk: resume(desk, queue, actor="ann"))
        wait_for(lambda: _states(hands) == {}, what="the hold to be over")
    assert Management(hands.place.address).bindings_from("retry.gate.held") == []
