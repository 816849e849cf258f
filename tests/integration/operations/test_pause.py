"""Pause and resume, with a real service and an independent consumer.

One service for all of them: each test has queues of its own, and nothing is held before or after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest

from tarry.amqp.management import Management
from tarry.audit.status import read_counts
from tarry.audit.verify import AuditReading, AuditRules
from tarry.core.names import Names
from tarry.errors import ConflictError, NotFoundError
from tarry.operations.cancel import cancel
from tarry.operations.context import OperatorContext, OperatorLimits
from tarry.operations.pause import Paused, active_pauses, pause, resume, show_pauses
from tarry.operations.pause_reconciler import PauseReconciler
from tarry.operations.paused_destination import read_paused_destinations
from tarry.operations.retry_now import retry_now
from tests.integration.operations.operators import Operator
from tests.integration.operations.witness import Witness, left_held_queue
from tests.support.hurry import HURRIED
from tests.support.installation import QUORUM, Installation
from tests.support.router import routers
from tests.support.services import Services
from tests.support.spaces import SharedBroker, drop_database, drop_vhost, make_database, make_vhost
from tests.support.store import in_session, verified
from tests.support.waiting import eventually, wait_for

NOW = timedelta(0)


@pytest.fixture(scope="module")
def serving(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    folder, maintenance = tmp_path_factory.mktemp("paused") / "topology", services.postgres()
    vhost = make_vhost(broker.amqp_url, broker.management_url, broker.version)
    database = make_database(maintenance)
    with (
        closing(Installation(vhost.amqp_url, vhost.management_url, database.dsn, folder).apply()) as installation,
        routers(installation) as start,
    ):
        start(**HURRIED).wait_ready()
        yield installation
    drop_vhost(vhost)
    drop_database(maintenance, database)


@pytest.fixture
def operator(serving: Installation) -> Iterator[Operator]:
    operator = Operator(serving)
    yield operator
    with contextlib.suppress(NotFoundError):  # nothing is paused
        operator.do(lambda context: resume(context, "*", actor="cleaner"))
    wait_for(lambda: _states(operator) == {}, deadline=60, what="nothing to be held")


def _pause(operator: Operator, pattern: str, lasts: timedelta | None = None) -> Paused:
    return operator.do(lambda context: pause(context, pattern, actor="ann", reason="it burns", lasts=lasts))


def _known(operator: Operator, queue: str) -> str:
    """A queue that tarry has delivered to before."""
    operator.installation.declare(queue)
    operator.installation.request(queue, f"first-{queue}")
    operator.installation.wait_message(queue)
    return queue


def _order_of_holding(operator: Operator, queue: str) -> str:
    """A queue that gets a copy of what is held, in the order in which it is: routers do not keep that of requests."""
    operator.installation.channel.queue_declare("order", durable=True, arguments=QUORUM)
    operator.installation.channel.queue_bind("order", "retry.gate.held", f"~to:{queue}")
    return "order"


def _held(operator: Operator, queue: str, count: int) -> None:
    """As the store has it."""
    wait_for(lambda: _count(operator, queue, "held") == count, what=f"{count} to be held")


def _count(operator: Operator, queue: str, state: str) -> int:
    with psycopg.connect(operator.installation.dsn) as connection:
        sql = "select count(*) from retry where queue = %s and state = %s"
        row = connection.execute(sql, [queue, state]).fetchone()
    assert row is not None
    return int(row[0])


def _states(operator: Operator) -> dict[str, str]:
    return {hold.label: hold.state for hold in operator.do(read_paused_destinations)}


def _look(operator: Operator) -> tuple[AuditReading, int]:
    rules = AuditRules(grace=timedelta(seconds=1), settle=NOW, patience=8)
    look, balance = verified(operator.installation.dsn, operator.installation.address, Names(), rules=rules)
    return look, balance.lost


def test_what_comes_due_in_a_pause_waits_and_comes_in_order_after_it(operator: Operator) -> None:
    queue = _known(operator, "quick.due")
    with Witness(operator.installation.amqp_url, queue) as witness:
        assert _pause(operator, queue).destinations == [queue]
        order = _order_of_holding(operator, queue)
        for number in range(30):
            operator.installation.request(queue, f"m{number:02}")
        _held(operator, queue, 30)
        assert operator.installation.depth(f"retry.held.{queue}") == 30
        assert witness.seen == []
        operator.do(lambda context: resume(context, queue, actor="ann"))
        wait_for(lambda: len(witness.seen) == 30, what="all to arrive")
        assert [one.message_id for one in witness.seen] == operator.installation.take_ids(order, 30)
        operator.installation.channel.queue_delete(order)
        wait_for(lambda: _states(operator) == {}, what="the hold to be over")
        operator.installation.request(queue, "after")
        wait_for(lambda: len(witness.seen) == 31, what="a message after the pause")
    assert all(one.at_ms >= one.due_ms for one in witness.seen)


def test_the_audit_balances_during_a_pause_and_names_lost_held_messages(operator: Operator) -> None:
    queue = _known(operator, "quick.balance")
    _pause(operator, queue)
    for number in range(5):
        operator.installation.request(queue, f"m{number}")
    _held(operator, queue, 5)
    look, lost = _look(operator)
    assert (look.verdict.lost, look.verdict.late, lost) == (0, [], 0)
    counts = in_session(operator.installation.dsn, lambda session: read_counts(session, NOW))
    assert (counts.held, counts.overdue) == (5, 0)
    operator.installation.take_ids(f"retry.held.{queue}", 5)
    look, _ = _look(operator)
    assert {one.retry.message_id for one in look.verdict.missing} == {f"m{number}" for number in range(5)}
    assert {one.why for one in look.verdict.missing} == {"its held queue is empty"}


def test_a_pause_for_a_while_ends_by_itself(operator: Operator) -> None:
    queue = _known(operator, "quick.while")
    with Witness(operator.installation.amqp_url, queue) as witness:
        _pause(operator, queue, timedelta(seconds=5))
        operator.installation.request(queue, "m")
        wait_for(lambda: len(witness.seen) == 1, what="it to arrive")
        left_held_queue(witness.seen[0], queue)  # fails if it was never in the held queue
        wait_for(lambda: _states(operator) == {}, what="the hold to be over")
    assert operator.do(active_pauses) == []


def test_a_glob_pauses_later_queues_too_and_one_can_be_resumed_by_itself(operator: Operator) -> None:
    first = _known(operator, "quick.glob")
    assert _pause(operator, "*.glob").destinations == [first]
    operator.installation.request(operator.installation.declare("slow.glob"), "m")
    wait_for(lambda: _states(operator) == {first: "holding", "slow.glob": "holding"}, what="the new one to be held")
    operator.do(lambda context: resume(context, first, actor="bob"))
    wait_for(lambda: _states(operator) == {"slow.glob": "holding"}, what="only the other to be held")
    [behind] = operator.do(show_pauses).paused_destinations
    assert [(one.pattern, one.actor, one.reason) for one in behind.pauses] == [("*.glob", "ann", "it burns")]
    done = operator.do(lambda context: resume(context, "*", actor="bob"))
    assert (done.destinations, done.pauses_ended) == (["slow.glob"], ["*.glob"])


def test_two_pauses_of_one_destination_last_until_both_are_over(operator: Operator) -> None:
    queue = _known(operator, "two.a")
    with Witness(operator.installation.amqp_url, queue) as witness:
        _pause(operator, "two.*")
        _pause(operator, queue, timedelta(seconds=1))
        operator.installation.request(queue, "m")
        _held(operator, queue, 1)
        wait_for(lambda: len(operator.do(active_pauses)) == 1, what="the short one to be over")
        assert (_states(operator), witness.seen) == ({queue: "holding"}, [])
        operator.do(lambda context: resume(context, "two.*", actor="ann"))
        wait_for(lambda: len(witness.seen) == 1, what="it to arrive")


def test_what_is_held_can_be_cancelled_and_not_be_hurried(operator: Operator) -> None:
    queue = _known(operator, "quick.held")
    with Witness(operator.installation.amqp_url, queue) as witness:
        _pause(operator, queue)
        operator.installation.request(queue, "goes")
        operator.installation.request(queue, "stays")
        # In time for certain means: due well after the hold came into force, and these are due at once.
        _held(operator, queue, 2)
        with pytest.raises(ConflictError, match=r"its destination is paused.*tarry resume quick\.held"):
            operator.do(lambda context: retry_now(context, "stays", actor="ann"))
        hasty = Operator(
            operator.installation, OperatorLimits(outcome_timeout=timedelta(seconds=1))
        )  # nothing is heard of it before the resume
        assert hasty.do(lambda context: cancel(context, "goes", actor="ann", reason="wrong")).answer in (
            "cancelled",
            "pending",
        )
        operator.do(lambda context: resume(context, queue, actor="ann"))
        wait_for(lambda: len(witness.seen) == 1, what="the other one to arrive")
        eventually(lambda: _fates(operator, {"goes": "cancelled", "stays": "returned"}))
    assert [one.message_id for one in witness.seen] == ["stays"]


def _fates(operator: Operator, wanted: dict[str, str]) -> None:
    with psycopg.connect(operator.installation.dsn) as connection:
        rows = connection.execute("select message_id, state from retry where message_id = any(%s)", [list(wanted)])
        assert dict(rows.fetchall()) == wanted


def test_a_name_that_nobody_knows_is_a_slip_and_nothing_is_paused(operator: Operator) -> None:
    with pytest.raises(NotFoundError, match="No retry ever went to 'ordres'"):
        _pause(operator, "ordres")
    assert operator.do(active_pauses) == []
    with pytest.raises(NotFoundError, match="Nothing that matches 'ordres' is paused"):
        operator.do(lambda context: resume(context, "ordres", actor="ann"))


def test_a_binding_that_the_store_has_forgotten_is_found_and_shown(operator: Operator) -> None:
    """Postgres was restored from before the pause: nobody must wait for ever behind a binding that nobody knows of."""
    queue = _known(operator, "quick.lost")
    _pause(operator, queue)
    with psycopg.connect(operator.installation.dsn) as connection:
        connection.execute("truncate paused_destination, pause cascade")

    async def two_looks(context: OperatorContext) -> None:
        watcher = PauseReconciler(context, assert_every=0)
        await watcher.look()
        assert await read_paused_destinations(context) == []  # once may be a pause that is just ending
        await watcher.look()

    operator.do(two_looks)
    [found] = operator.do(read_paused_destinations)
    assert (found.label, found.state, found.problem) == (
        queue,
        "holding",
        "bound on the broker, but not recorded in the audit: resume it, or pause it again",
    )
    operator.do(lambda context: resume(context, queue, actor="ann"))
    wait_for(lambda: _states(operator) == {}, what="the hold to be over")
    assert Management(operator.installation.address).bindings_from("retry.gate.held") == []
