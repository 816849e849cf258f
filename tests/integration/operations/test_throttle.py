"""Throttles, with a real service and an independent consumer. One service for all: each test has queues of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from tarry.amqp.management import Management
from tarry.audit.verify import AuditRules
from tarry.core.names import Names
from tarry.errors import ControlError, NotFoundError
from tarry.operations.pause import DestinationPause, pause, resume, show_pauses
from tarry.operations.retry_now import retry_now
from tarry.operations.throttle import Throttled, throttle, unthrottle
from tests.integration.operations.operators import Operator
from tests.integration.operations.witness import Witness
from tests.support.hurry import HURRIED
from tests.support.installation import POLICIES, QUORUM, shared_installation
from tests.support.router import Router, start_router
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.store import verified
from tests.support.waiting import wait_for

EVEN = 140
"""Messages: seven seconds at 20 a second."""

CALM = """
[[policy]]
name = "calm"
match = { queue = "calm.*" }
schedule = ["500ms"]
max_retries = 3
max_rate = 20
"""


class Serving(Operator):
    """An operator of an installation with one service, which can be killed and started again."""

    router: Router

    def start(self) -> None:
        self.router = start_router(self.installation, **HURRIED)
        self.router.wait_ready()


@pytest.fixture(scope="module")
def serving(broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("throttled") / "topology"
    folder.mkdir()
    (folder / "tarry.toml").write_text(POLICIES.replace("\n[[policy]]", CALM + "\n[[policy]]", 1), encoding="utf-8")
    with shared_installation(broker, services, folder) as installation:
        operator = Serving(installation)
        operator.start()
        yield operator
        operator.router.kill()


@pytest.fixture
def operator(serving: Serving) -> Iterator[Serving]:
    yield serving
    for end in (resume, unthrottle):
        with contextlib.suppress(NotFoundError):  # nothing is paused, nothing is throttled
            serving.do(lambda context, end=end: end(context, "*", actor="cleaner"))  # type: ignore[misc]


def _states(operator: Operator) -> dict[str, str]:
    return {one.destination: one.state for one in operator.do(show_pauses).paused_destinations}


def _shown(operator: Operator, queue: str) -> DestinationPause:
    [found] = [one for one in operator.do(show_pauses).paused_destinations if one.destination == queue]
    return found


def _known(operator: Operator, queue: str) -> str:
    """A queue that tarry has delivered to before."""
    operator.installation.declare(queue)
    operator.installation.request(queue, f"first-{queue}")
    operator.installation.wait_message(queue)
    return queue


def _throttle(operator: Operator, pattern: str, rate: int, lasts: timedelta | None = None) -> Throttled:
    return operator.do(lambda context: throttle(context, pattern, rate=rate, actor="ann", reason="weak", lasts=lasts))


def _request(operator: Operator, queue: str, count: int, name: str = "m") -> None:
    for number in range(count):
        operator.installation.request(queue, f"{name}{number:03}")


def _order_of_holding(operator: Operator, queue: str) -> str:
    """A queue that gets a copy of what is held, in the order in which it is: routers do not keep that of requests."""
    operator.installation.channel.queue_declare("order", durable=True, arguments=QUORUM)
    operator.installation.channel.queue_bind("order", "retry.gate.held", f"~to:{queue}")
    return "order"


def _most_in_a_second(at_ms: list[int]) -> int:
    """The most arrivals in any second."""
    return max(sum(start <= one < start + 1000 for one in at_ms) for start in at_ms)


def test_throttled_returns_arrive_in_order_and_evenly(operator: Serving) -> None:
    queue = _known(operator, "quick.even")
    with Witness(operator.installation.amqp_url, queue) as witness:
        assert _throttle(operator, queue, 20).destinations == {queue: 20}
        order = _order_of_holding(operator, queue)
        _request(operator, queue, EVEN)  # for long enough that some are marked as held on a busy machine
        wait_for(
            lambda: operator.installation.number("select count(*) from retry where state = 'held'"),
            what="some to be held",
        )
        look, balance = verified(
            operator.installation.dsn, operator.installation.address, Names(), rules=AuditRules(grace=timedelta(0))
        )
        assert (look.verdict.lost, balance.lost, balance.overdue) == (0, 0, 0)
        assert operator.router.metric("tarry_throttle_rate", destination=queue) == 20
        wait_for(lambda: len(witness.seen) == EVEN, what="all to arrive")
        assert [one.message_id for one in witness.seen] == operator.installation.take_ids(order, EVEN)
        operator.installation.channel.queue_delete(order)
        at = [one.at_ms for one in witness.seen]
        assert at[-1] - at[0] >= (EVEN - 1) * 50 - 100
        assert _most_in_a_second(at) <= 24  # the consumer and the network are not perfectly even
        assert _shown(operator, queue).state == "throttled"  # it does not end by itself
    assert all(one.at_ms >= one.due_ms for one in witness.seen)


@pytest.mark.one_series
def test_throttle_of_the_same_name_changes_the_rate_at_once(operator: Serving) -> None:
    queue = _known(operator, "quick.rate")
    with Witness(operator.installation.amqp_url, queue) as witness:
        _throttle(operator, queue, 1)
        _request(operator, queue, 40)
        wait_for(lambda: len(witness.seen) >= 2, what="the first to arrive")
        assert len(witness.seen) < 10
        _throttle(operator, queue, 200)
        wait_for(lambda: len(witness.seen) == 40, deadline=15, what="the rest, which would take 40 s at the old rate")
    shown = _shown(operator, queue)
    assert [(one.rate, one.actor, one.reason) for one in shown.throttles] == [(200, "ann", "weak")]


@pytest.mark.one_series
def test_throttle_that_expires_drains_and_removes_the_binding(operator: Serving) -> None:
    queue = _known(operator, "quick.end")
    with Witness(operator.installation.amqp_url, queue) as witness:
        _throttle(operator, queue, 1)
        _request(operator, queue, 30)
        wait_for(lambda: operator.installation.depth(f"retry.held.{queue}") > 20, what="most to be held")
        _throttle(operator, queue, 1, timedelta(milliseconds=1))  # replaces the first, and expires
        wait_for(lambda: len(witness.seen) == 30, what="all to arrive")
        wait_for(lambda: queue not in _states(operator), what="the release to be over")
    bound = Management(operator.installation.address).bindings_from("retry.gate.held")
    assert not [one for one in bound if one["routing_key"] == f"~to:{queue}"]
    [ended] = operator.installation.rows(
        "select detail ->> 'why' from action where kind = 'unthrottle' and target = %s", queue
    )
    assert ended == ("ann's throttle expired",)
    with pytest.raises(NotFoundError, match=r"Nothing that matches 'quick\.end' is throttled"):
        operator.do(lambda context: unthrottle(context, queue, actor="bob"))


def test_pause_in_a_throttle_holds_all_and_resumes_into_it(operator: Serving) -> None:
    queue = _known(operator, "quick.both")
    with Witness(operator.installation.amqp_url, queue) as witness:
        _throttle(operator, queue, 10)
        operator.do(lambda context: pause(context, queue, actor="ann"))
        assert _shown(operator, queue).state == "holding"
        _request(operator, queue, 25)
        wait_for(lambda: operator.installation.depth(f"retry.held.{queue}") == 25, what="all to be held")
        assert witness.seen == []
        resumed = operator.do(lambda context: resume(context, queue, actor="ann"))
        assert resumed.throttled == {queue: 10}
        wait_for(lambda: len(witness.seen) == 25, what="all to arrive")
        at = [one.at_ms for one in witness.seen]
        assert at[-1] - at[0] >= 24 * 100 - 100
        assert _shown(operator, queue).state == "throttled"


@pytest.mark.one_series
def test_throttle_slows_a_release_under_way(operator: Serving) -> None:
    queue = _known(operator, "quick.during")
    with Witness(operator.installation.amqp_url, queue) as witness:
        operator.do(lambda context: pause(context, queue, actor="ann"))
        _request(operator, queue, 20)
        wait_for(lambda: operator.installation.depth(f"retry.held.{queue}") == 20, what="all to be held")
        operator.do(lambda context: resume(context, queue, actor="ann", rate=2))
        wait_for(lambda: len(witness.seen) >= 1, what="the release to begin")
        _throttle(operator, queue, 100)  # a resume at 2 a second stays as slow as that
        operator.do(lambda context: resume(context, queue, actor="ann", rate=500))
        wait_for(lambda: len(witness.seen) == 20, deadline=15, what="all to arrive")
        _request(operator, queue, 1, "later")
        wait_for(lambda: len(witness.seen) == 21, what="one that comes due later")
        assert _shown(operator, queue).state == "throttled"


@pytest.mark.one_series
def test_throttle_of_a_glob_applies_to_later_queues_and_can_end_for_one(operator: Serving) -> None:
    first = _known(operator, "quick.glob")
    assert _throttle(operator, "*.glob", 5).destinations == {first: 5}
    operator.installation.request(operator.installation.declare("slow.glob"), "m")
    wait_for(lambda: _states(operator).get("slow.glob") == "throttled", what="the new one to be throttled")
    operator.do(lambda context: unthrottle(context, first, actor="bob"))
    wait_for(lambda: first not in _states(operator), what="only the other to be throttled")
    assert _shown(operator, "slow.glob").throttle == 5


@pytest.mark.one_series
def test_throttle_of_a_policy_applies_and_the_lowest_counts(operator: Serving) -> None:
    queue = operator.installation.declare("calm.policy")
    operator.installation.request(queue, "first", retry_after_ms=60_000)
    wait_for(lambda: _states(operator).get(queue) == "throttled", what="the policy's limit")
    assert [(one.rate, one.policy) for one in _shown(operator, queue).throttles] == [(20, "calm")]
    with pytest.raises(NotFoundError, match="max_rate` of policy 'calm'"):
        operator.do(lambda context: unthrottle(context, queue, actor="bob"))
    assert _throttle(operator, queue, 50).destinations == {queue: 20}
    assert _throttle(operator, queue, 7).destinations == {queue: 7}
    done = operator.do(lambda context: unthrottle(context, queue, actor="bob"))
    assert (done.destinations, done.still_throttled) == ([], {queue: 20})


def test_throttled_messages_wait_while_no_service_runs(operator: Serving) -> None:
    """Killed in the middle: none is lost, none is doubled, and the next service goes on at the rate."""
    queue = _known(operator, "quick.killed")
    with Witness(operator.installation.amqp_url, queue) as witness:
        _throttle(operator, queue, 10)
        _request(operator, queue, 40)
        wait_for(lambda: len(witness.seen) >= 5, what="some to arrive")
        operator.router.kill()
        arrived = wait_for(lambda: _settled(witness), what="the broker to know that the service is gone")
        assert arrived < 40
        wait_for(
            lambda: (_shown(operator, queue).problem or "").startswith("no service is releasing"), what="it to say so"
        )
        operator.start()
        wait_for(lambda: len(witness.seen) >= 40, what="the rest to arrive")
    assert sorted(witness.rounds().items()) == [(f"m{number:03}", [1]) for number in range(40)]
    at = [one.at_ms for one in witness.seen[arrived:]]
    assert at[-1] - at[0] >= (len(at) - 1) * 100 - 100


def _settled(witness: Witness) -> int:
    """How many have arrived, once no more arrive for a moment."""
    before = len(witness.seen)
    threading.Event().wait(0.5)
    return before if len(witness.seen) == before else 0


@pytest.mark.one_series
def test_retry_now_is_possible_at_a_throttled_destination(operator: Serving) -> None:
    queue = operator.installation.declare("slow.now")
    with Witness(operator.installation.amqp_url, queue) as witness:
        operator.installation.request(queue, "now")
        operator.installation.retry_of("now")
        _throttle(operator, queue, 10)
        wait_for(lambda: operator.installation.states("now")[0][1] == "scheduled", what="it to wait")
        assert operator.do(lambda context: retry_now(context, "now", actor="ann")).answer == "retried"
        wait_for(lambda: len(witness.seen) == 1, what="it to arrive")


@pytest.mark.one_series
def test_audit_misses_what_a_throttle_with_a_backlog_has_lost(operator: Serving) -> None:
    queue = _known(operator, "quick.lost")
    _throttle(operator, queue, 1)
    _request(operator, queue, 90)
    installation = operator.installation
    held = "select count(*) from retry where state = 'held' and updated_at < now() - interval '2 seconds'"
    wait_for(lambda: installation.number(held) > 70, what="most to be held for a while")
    rules = AuditRules(grace=timedelta(seconds=30))
    look, _ = verified(installation.dsn, installation.address, Names(), rules=rules)
    assert look.verdict.lost == 0
    taken = [found for _ in range(15) if (found := installation.get(f"retry.held.{queue}"))]
    look, _ = verified(installation.dsn, installation.address, Names(), rules=replace(rules, patience=0))
    assert 0 < look.verdict.lost <= len(taken)
    assert [one.tier for one in look.verdict.shortages] == [f"retry.held.{queue}"]


@pytest.mark.one_series
def test_throttle_refuses_bad_values(operator: Serving) -> None:
    with pytest.raises(ControlError, match="At 0 a second nothing would return"):
        _throttle(operator, "quick.x", 0)
    with pytest.raises(NotFoundError, match="No retry ever went to 'ordres'"):
        _throttle(operator, "ordres", 5)
