"""Pauses by policy, by job type and of automatic retries, alone and together with one of the destination.

One service for all of them: each test has queues of its own, and nothing is held before or after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta

import psycopg
import pytest

from tarry.amqp.management import Management
from tarry.audit.status import read_counts
from tarry.audit.verify import AuditRules
from tarry.client import Options
from tarry.core.names import Names
from tarry.errors import BrokerError, ConflictError, NotFoundError
from tarry.operations.cancel import cancel
from tarry.operations.context import OperatorContext, OperatorLimits
from tarry.operations.pause import (
    Paused,
    ReleaseOptions,
    Scope,
    active_pauses,
    is_paused,
    pause,
    resume,
    show_pauses,
)
from tarry.operations.pause_reconciler import PauseReconciler
from tarry.operations.paused_destination import read_paused_destinations
from tarry.operations.retry_now import retry_now
from tests.integration.client.adapters import Blocking
from tests.integration.operations.operators import Operator
from tests.integration.operations.witness import Witness
from tests.support.hurry import HURRIED
from tests.support.installation import Installation
from tests.support.router import Router, routers
from tests.support.services import Services
from tests.support.spaces import SharedBroker, drop_database, drop_vhost, make_database, make_vhost
from tests.support.store import in_session, verified
from tests.support.waiting import eventually, wait_for

NOW = timedelta(0)
LONG = 60
"""Seconds within which something must have happened on a busy machine."""

Target = tuple[Scope, str]
AUTOMATIC: Target = ("automatic-retries", "")


@dataclass
class Serving:
    """A place with a service, which can be restarted."""

    installation: Installation
    start: Callable[..., Router]
    router: Router

    def restart(self) -> None:
        self.router.kill()
        self.router = self.start(**HURRIED).wait_ready()


@pytest.fixture(scope="module")
def serving(broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder, maintenance = tmp_path_factory.mktemp("gates") / "topology", services.postgres()
    vhost = make_vhost(broker.amqp_url, broker.management_url, broker.version)
    database = make_database(maintenance)
    with (
        closing(Installation(vhost.amqp_url, vhost.management_url, database.dsn, folder).apply()) as installation,
        routers(installation) as start,
    ):
        yield Serving(installation, start, start(**HURRIED).wait_ready())
    drop_vhost(vhost)
    drop_database(maintenance, database)


@pytest.fixture
def operator(serving: Serving) -> Iterator[Operator]:
    operator = Operator(serving.installation)
    yield operator
    for one in operator.do(active_pauses):
        _resume(operator, (one.scope, one.pattern))
    wait_for(lambda: _states(operator) == {}, deadline=LONG, what="nothing to be held")


def _pause(
    operator: Operator, target: Target, lasts: timedelta | None = None, at_end: ReleaseOptions | None = None
) -> Paused:
    scope, name = target
    return operator.do(
        lambda context: pause(context, name, scope=scope, actor="ann", reason="it burns", lasts=lasts, at_end=at_end)
    )


def _resume(operator: Operator, target: Target) -> None:
    scope, name = target
    with contextlib.suppress(NotFoundError):
        operator.do(lambda context: resume(context, name, scope=scope, actor="ann"))


def _known(operator: Operator, queue: str) -> str:
    """A queue that tarry has delivered to before."""
    operator.installation.declare(queue)
    operator.installation.request(queue, f"first-{queue}")
    operator.installation.wait_message(queue)
    return queue


def _states(operator: Operator) -> dict[str, str]:
    return {paused.label: paused.state for paused in operator.do(read_paused_destinations)}


def _held(operator: Operator, queue: str, count: int) -> None:
    """As the store has it."""

    def enough() -> bool:
        with psycopg.connect(operator.installation.dsn) as connection:
            sql = "select count(*) from retry where queue = %s and state = 'held'"
            return connection.execute(sql, [queue]).fetchone() == (count,)

    wait_for(enough, deadline=LONG, what=f"{count} to be held")


def _over(operator: Operator, target: Target) -> None:
    """Waits until a release has ended, so that a message which it let go is at its next installation."""
    scope, name = target
    kinds = ("queue", "exchange") if scope == "queue" else (scope,)

    def is_over() -> bool:
        found = operator.do(read_paused_destinations)
        return not any(paused.kind in kinds and paused.name == name for paused in found)

    wait_for(is_over, deadline=LONG, what=f"the pause of {name or scope} to be over")


def test_every_message_returns_once_after_the_last_of_its_pauses(operator: Operator) -> None:
    """Each of the three pauses ends first, second and last: those of policy, job type and destination. Every order of
    every mix is walked through in tests/unit/topology/test_blueprint_routing.py.
    """
    queue = _known(operator, "quick.every")
    targets: list[Target] = [("policy", "quick"), ("job-type", "pdf.large"), ("queue", queue)]
    with Witness(operator.installation.amqp_url, queue) as witness:
        orders = [targets[start:] + targets[:start] for start in range(3)]
        for number, order in enumerate(orders):
            for target in targets:
                assert _pause(operator, target).problems == {}
            sent = [f"m{number}-{one}" for one in range(5)]
            for message in sent:
                operator.installation.request(queue, message, job_type="pdf.large")
            _held(operator, queue, len(sent))
            for target in order:
                assert len(witness.seen) == 5 * number
                _resume(operator, target)
                _over(operator, target)
            wait_for(lambda: len(witness.seen) >= 5 * (number + 1), deadline=LONG, what=f"{order} to return")  # noqa: B023
        operator.installation.request(queue, "after", job_type="pdf.large")
        wait_for(lambda: any(one.message_id == "after" for one in witness.seen), deadline=LONG, what="the last one")
    ids = [one.message_id for one in witness.seen]
    assert len(ids) == len(set(ids)) == 5 * 3 + 1


def test_a_pause_that_begins_later_holds_what_another_one_releases(operator: Operator, serving: Serving) -> None:
    """The message has passed the later gate before it was paused; and the service is restarted in between."""
    queue = _known(operator, "quick.later")
    with Witness(operator.installation.amqp_url, queue) as witness:
        _pause(operator, ("job-type", "pdf"))
        operator.installation.request(queue, "m", job_type="pdf")
        _held(operator, queue, 1)
        _pause(operator, ("queue", queue))
        serving.restart()
        _resume(operator, ("job-type", "pdf"))
        _over(operator, ("job-type", "pdf"))
        wait_for(
            lambda: operator.installation.depth(f"retry.held.{queue}") == 1,
            deadline=LONG,
            what="the destination to hold it",
        )
        _pause(operator, ("policy", "quick"))
        _resume(operator, ("queue", queue))
        _over(operator, ("queue", queue))
        wait_for(
            lambda: operator.installation.depth("retry.held~policy:quick") == 1,
            deadline=LONG,
            what="the policy to hold it",
        )
        serving.restart()
        assert witness.seen == []
        _resume(operator, ("policy", "quick"))
        wait_for(lambda: len(witness.seen) == 1, deadline=LONG, what="it to return")
        _over(operator, ("policy", "quick"))
    assert [one.message_id for one in witness.seen] == ["m"]


def test_a_pause_by_policy_holds_nothing_of_others_and_the_audit_balances(operator: Operator) -> None:
    quick, other = _known(operator, "quick.only"), _known(operator, "other.only")
    _pause(operator, ("policy", "quick"))
    operator.installation.request(quick, "held")
    operator.installation.request(other, "passes")
    assert operator.installation.take_ids(other, 1) == ["passes"]
    _held(operator, quick, 1)
    counts = in_session(operator.installation.dsn, lambda session: read_counts(session, NOW))
    assert (counts.held, counts.overdue) == (1, 0)
    rules = AuditRules(grace=timedelta(seconds=1), settle=NOW, patience=8)
    look, balance = verified(operator.installation.dsn, operator.installation.address, Names(), rules=rules)
    assert (look.verdict.lost, look.verdict.late, balance.lost) == (0, [], 0)
    [shown] = operator.do(show_pauses).paused_destinations
    assert (shown.destination, shown.kind, shown.name, shown.depth) == ("policy quick", "policy", "quick", 1)
    assert [(one.target, one.actor, one.reason) for one in shown.pauses] == [("policy quick", "ann", "it burns")]
    operator.installation.take_ids("retry.held~policy:quick", 1)
    look, _ = verified(operator.installation.dsn, operator.installation.address, Names(), rules=rules)
    assert [one.retry.message_id for one in look.verdict.missing] == ["held"]


def test_a_paused_job_type_does_not_hide_a_lost_retry_of_others(operator: Operator) -> None:
    """Both retries are overdue as the store has them; one is in the held queue of its job type, the other nowhere."""
    quick, other = _known(operator, "quick.hides"), _known(operator, "other.hides")
    _pause(operator, ("job-type", "pdf"))
    operator.installation.request(quick, "kept", job_type="pdf")
    operator.installation.request(other, "lost")
    assert operator.installation.take_ids(other, 1) == ["lost"]
    _held(operator, quick, 1)
    wait_for(lambda: operator.installation.states("lost")[-1][1] == "returned", deadline=LONG, what="the return")
    past = "due_at = now() - interval '5 minutes', expected_at = now() - interval '5 minutes'"
    _change(operator, f"state = 'scheduled', {past}", "kept", "lost")
    try:
        eventually(lambda: _found(operator, missing=["lost"], late=["kept"]), deadline=LONG)
        _change(operator, "properties = null", "lost")  # Its job type is not known any more.
        eventually(lambda: _found(operator, missing=[], late=["kept", "lost"]), deadline=LONG)
    finally:
        _change(operator, "state = 'discarded'", "lost")
        _change(operator, "state = 'held'", "kept")


def _change(operator: Operator, columns: str, *messages: str) -> None:
    with psycopg.connect(operator.installation.dsn) as connection:
        sql = f"update retry set {columns} where message_id = any(%s)"  # noqa: S608
        connection.execute(sql.encode(), [list(messages)])


def _found(operator: Operator, *, missing: list[str], late: list[str]) -> None:
    """The verdict on these messages; those that are late can be in the held queue of the job type only."""
    rules = AuditRules(grace=timedelta(seconds=1), settle=NOW, patience=0)
    look, _ = verified(operator.installation.dsn, operator.installation.address, Names(), rules=rules)
    ours = {"kept", "lost"}
    assert [one.retry.message_id for one in look.verdict.missing if one.retry.message_id in ours] == missing
    found = [one for one in look.verdict.late if one.retry.message_id in ours]
    assert sorted(str(one.retry.message_id) for one in found) == late
    assert {one.where for one in found} == {("retry.held~type:pdf",)}


def test_a_held_retry_is_not_judged_just_after_a_release(operator: Operator) -> None:
    """The last messages of a released destination can be on their way to the held queue of a gate."""
    quick, other = _known(operator, "quick.guard"), _known(operator, "other.guard")
    _pause(operator, ("policy", "quick"))
    operator.installation.request(quick, "on-its-way")
    _held(operator, quick, 1)
    assert operator.installation.take_ids("retry.held~policy:quick", 1) == ["on-its-way"]
    _change(operator, "updated_at = now() - interval '1 hour'", "on-its-way")
    with psycopg.connect(operator.installation.dsn) as connection:
        connection.execute("update paused_destination set state_since = now() - interval '1 hour' where state = 'over'")
    rules = AuditRules(settle=timedelta(minutes=10), patience=0)
    look, _ = verified(operator.installation.dsn, operator.installation.address, Names(), rules=rules)
    assert "on-its-way" in [one.retry.message_id for one in look.verdict.missing]
    _pause(operator, ("queue", other))
    _resume(operator, ("queue", other))
    _over(operator, ("queue", other))
    look, _ = verified(operator.installation.dsn, operator.installation.address, Names(), rules=rules)
    assert "on-its-way" not in [one.retry.message_id for one in look.verdict.missing]
    _change(operator, "state = 'discarded'", "on-its-way")


def test_a_pause_of_automatic_retries_lets_manual_ones_pass(operator: Operator) -> None:
    queue, quick = operator.installation.declare("slow.manual"), _known(operator, "quick.manual")
    with (
        Witness(operator.installation.amqp_url, queue) as witness,
        Witness(operator.installation.amqp_url, quick) as held,
    ):
        operator.installation.request(queue, "waits")
        waits = operator.installation.retry_of("waits")
        _pause(operator, AUTOMATIC)
        operator.installation.request(quick, "kept")
        operator.installation.request(quick, "hurried")
        _held(operator, quick, 2)
        assert operator.do(lambda context: is_paused(context, "automatic-retries"))
        eventually(lambda: _scheduled(operator, waits))
        assert operator.do(lambda context: retry_now(context, waits, actor="ann")).answer == "retried"
        wait_for(lambda: len(witness.seen) == 1, deadline=LONG, what="the manual retry to return")
        # One that is held already may be too close to the beginning of the pause to be sure where it is: then it waits.
        hasty = Operator(operator.installation, OperatorLimits(outcome_timeout=timedelta(seconds=1)))
        answer = hasty.do(lambda context: retry_now(context, "hurried", actor="ann")).answer
        assert answer in ("retried", "pending")
        if answer == "retried":
            wait_for(lambda: [one.message_id for one in held.seen] == ["hurried"], deadline=LONG, what="the held one")
        _resume(operator, AUTOMATIC)
        wait_for(lambda: {one.message_id for one in held.seen} == {"hurried", "kept"}, deadline=LONG, what="the others")
        _over(operator, AUTOMATIC)
        assert len(held.seen) == 2
    assert not operator.do(lambda context: is_paused(context, "automatic-retries"))


def _scheduled(operator: Operator, retry: str) -> None:
    with psycopg.connect(operator.installation.dsn) as connection:
        assert connection.execute("select state from retry where id = %s", [retry]).fetchone() == ("scheduled",)


def test_what_a_policy_holds_can_be_cancelled_and_not_be_hurried(operator: Operator) -> None:
    queue = _known(operator, "quick.cancel")
    with Witness(operator.installation.amqp_url, queue) as witness:
        _pause(operator, ("policy", "quick"))
        operator.installation.request(queue, "goes")
        operator.installation.request(queue, "stays")
        _held(operator, queue, 2)
        with pytest.raises(ConflictError, match=r"its policy is paused.*tarry resume --policy quick"):
            operator.do(lambda context: retry_now(context, "stays", actor="ann"))
        hasty = Operator(operator.installation, OperatorLimits(outcome_timeout=timedelta(seconds=1)))
        hasty.do(lambda context: cancel(context, "goes", actor="ann", reason="wrong"))
        _resume(operator, ("policy", "quick"))
        wait_for(lambda: len(witness.seen) == 1, deadline=LONG, what="the other one to return")
        _over(operator, ("policy", "quick"))
        wait_for(lambda: operator.installation.states("goes")[0][1] == "cancelled", deadline=LONG, what="the cancel")
    assert [one.message_id for one in witness.seen] == ["stays"]


def test_a_timed_pause_ends_with_a_canary_and_a_rate(operator: Operator) -> None:
    """The consumer reports successes: a canary that nobody reports waits for the broker's statistics."""
    queue = _known(operator, "quick.canary")
    release = ReleaseOptions(rate=200, canary=True, observe=timedelta(seconds=1))
    _pause(operator, ("job-type", "png"), timedelta(seconds=5), release)
    [shown] = operator.do(show_pauses).pauses
    assert shown.at_end == release
    for number in range(3):
        operator.installation.request(queue, f"m{number}", job_type="png")

    def first_canary() -> bool:
        return any(one.canary and one.rate == 200 and one.stage_ids for one in operator.do(read_paused_destinations))

    wait_for(first_canary, deadline=LONG, what="the canary to be released")
    seen: list[object] = []
    reports = Options(report_seconds=0.1)
    with Blocking(operator.installation.amqp_url, queue, lambda *one: seen.append(one), reports):
        wait_for(lambda: len(seen) == 3, deadline=2 * LONG, what="all to return after the canaries")
        _over(operator, ("job-type", "png"))
    assert len(seen) == 3
    with psycopg.connect(operator.installation.dsn) as connection:
        sql = "select detail ->> 'rate', detail ->> 'canary' from action where kind = 'resume' and target = %s"
        assert connection.execute(sql, ["job type png"]).fetchall() == [("200", "true")]


def test_a_policy_that_nobody_knows_is_not_paused(operator: Operator) -> None:
    with pytest.raises(NotFoundError, match=r"There is no policy 'qiuck'.*default, quick, slow"):
        _pause(operator, ("policy", "qiuck"))
    with pytest.raises(NotFoundError, match="There is no pause of policy quick"):
        operator.do(lambda context: resume(context, "quick", scope="policy", actor="ann"))
    assert operator.do(active_pauses) == []


def test_a_pause_of_stuck_recovery_is_stored_and_ends_by_itself(operator: Operator) -> None:
    _pause(operator, ("stuck-recovery", ""), timedelta(seconds=2))
    assert operator.do(lambda context: is_paused(context, "stuck-recovery"))
    wait_for(
        lambda: not operator.do(lambda context: is_paused(context, "stuck-recovery")), deadline=LONG, what="its end"
    )
    wait_for(lambda: operator.do(active_pauses) == [], deadline=LONG, what="its end to be recorded")


def test_a_pause_says_how_many_waiting_retries_lack_the_key(operator: Operator) -> None:
    """They were scheduled by an earlier version: their stored properties are what waits in the tier."""
    queue = operator.installation.declare("slow.before")
    operator.installation.request(queue, "old")
    retry = operator.installation.retry_of("old")
    eventually(lambda: _scheduled(operator, retry))
    assert _pause(operator, ("policy", "slow")).without_key == 0
    with psycopg.connect(operator.installation.dsn) as connection:
        connection.execute("update retry set properties = ''::bytea where id = %s", [retry])
    assert _pause(operator, ("policy", "slow")).without_key == 1
    assert _pause(operator, AUTOMATIC).without_key == 1
    assert _pause(operator, ("policy", "quick")).without_key == 0


def test_a_pause_by_policy_that_the_store_has_forgotten_is_found(operator: Operator) -> None:
    """Postgres was restored from before the pause."""
    _pause(operator, ("policy", "quick"))
    with psycopg.connect(operator.installation.dsn) as connection:
        connection.execute("truncate paused_destination, pause cascade")

    async def two_looks(context: OperatorContext) -> None:
        reconciler = PauseReconciler(context, assert_every=0)
        await reconciler.look()
        await reconciler.look()

    operator.do(two_looks)
    [found] = operator.do(read_paused_destinations)
    assert (found.label, found.kind, found.name, found.state) == ("~policy:quick", "policy", "quick", "holding")
    operator.do(lambda context: resume(context, "quick", scope="policy", actor="ann"))
    _over(operator, ("policy", "quick"))
    management = Management(operator.installation.address)
    assert management.bindings_from("retry.gate.policy") == management.bindings_from("retry.recheck.policy") == []


def test_a_pause_by_policy_is_refused_until_apply_has_replaced_former_bindings(operator: Operator) -> None:
    """As after an interrupted upgrade: a message would be held, and delivered past the gates as well."""
    operator.installation.channel.exchange_bind("retry.deliver", "retry.arrive", "")
    try:
        with pytest.raises(BrokerError, match=r"earlier version.*tarry topology apply"):
            _pause(operator, ("policy", "quick"))
    finally:
        operator.installation.apply()
    assert {one["destination"] for one in Management(operator.installation.address).bindings_from("retry.arrive")} == {
        "retry.gate.check"
    }
    assert operator.do(active_pauses) == []
