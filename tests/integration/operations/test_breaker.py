"""Breakers and operators, with a real service. One service for all: each test has queues of its own.

What the routers would count is written into the store, so that no test has to fail many messages.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tarry.amqp.management import Management
from tarry.cli.remote import current_user
from tarry.client import Options
from tarry.core.breaker import BreakerState
from tarry.core.queue_scope import QueueScope
from tarry.errors import ConflictError, ControlError, ForbiddenError, NotFoundError
from tarry.operations.breaker import (
    BreakerView,
    close_breaker,
    free_breaker,
    list_breakers,
    open_breaker,
    show_breaker,
)
from tarry.operations.cancel import cancel
from tarry.operations.context import OperatorContext, OperatorLimits
from tarry.operations.local import LocalOperations
from tarry.operations.pause import DestinationPause, pause, resume, show_pauses
from tarry.operations.scoped import ScopedOperations
from tarry.operations.throttle import throttle, unthrottle
from tests.integration.client.adapters import Blocking
from tests.integration.operations.operators import Operator
from tests.support.cli import WIDE, run_cli
from tests.support.installation import POLICIES, shared_installation
from tests.support.router import Router, start_router
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

GUARDED = """
[[policy]]
name = "urgent"
match = { queue = "guarded.*", priority = "high" }
schedule = ["500ms"]
max_retries = 3

[[policy]]
name = "guarded"
match = { queue = "guarded.*" }
schedule = ["500ms"]
max_retries = 3
breaker = { failed = "50%", of = 10, within = "1m", wait = "1s", longest_wait = "5m" }

[[policy]]
name = "patient"
match = { queue = "patient.*" }
schedule = ["500ms"]
max_retries = 3
breaker = { failed = "50%", of = 10, within = "1m", wait = "1h", longest_wait = "1h" }

[[policy]]
name = "leaving"
match = { queue = "leaving.*" }
schedule = ["500ms"]
max_retries = 3
breaker = { of = 10, wait = "2h", longest_wait = "2h" }
"""


class Serving(Operator):
    """An operator of an installation with one service."""

    router: Router

    def start(self) -> None:
        self.router = start_router(self.installation)
        self.router.wait_ready()


@pytest.fixture(scope="module")
def serving(broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("guarded") / "topology"
    folder.mkdir()
    (folder / "tarry.toml").write_text(POLICIES.replace("\n[[policy]]", GUARDED + "\n[[policy]]", 1), encoding="utf-8")
    with shared_installation(broker, services, folder) as installation:
        operator = Serving(installation)
        operator.start()
        yield operator
        operator.router.kill()


@pytest.fixture
def operator(serving: Serving) -> Iterator[Serving]:
    yield serving
    for end in (resume, unthrottle):
        with contextlib.suppress(NotFoundError, ConflictError):  # nothing is paused, or only by breakers
            serving.do(lambda context, end=end: end(context, "*", actor="cleaner"))  # type: ignore[misc]


def _known(operator: Operator, queue: str) -> str:
    """A queue that tarry has delivered to before."""
    operator.installation.declare(queue)
    operator.installation.request(queue, f"first-{queue}")
    operator.installation.wait_message(queue)
    return queue


def _count(operator: Operator, queue: str, returned: int, failed: int) -> None:
    """As if a router had counted this."""
    operator.installation.rows(
        "insert into breaker_count (destination, returned, failed) values (%s, %s, %s) returning at",
        queue,
        returned,
        failed,
    )


def _breaker(operator: Operator, queue: str) -> BreakerView:
    return operator.do(lambda context: show_breaker(context, queue))


def _wait(operator: Operator, queue: str, state: BreakerState) -> BreakerView:
    wait_for(lambda: _breaker(operator, queue).state is state, deadline=60, what=f"the breaker to be {state}")
    return _breaker(operator, queue)


@contextlib.contextmanager
def _reporting(operator: Operator, queue: str) -> Iterator[list[object]]:
    """A consumer that succeeds, and reports it: a probe passes as soon as it is known."""
    seen: list[object] = []
    with Blocking(
        operator.installation.amqp_url, queue, lambda *found: seen.append(found), Options(report_seconds=0.1)
    ):
        yield seen


def _paused(operator: Operator, queue: str) -> DestinationPause | None:
    shown = operator.do(show_pauses).paused_destinations
    return next((one for one in shown if one.destination == queue), None)


def _kinds(operator: Operator, queue: str) -> list[tuple[str, str]]:
    """Who did what to the breaker; the service is `service`."""
    rows = operator.installation.rows(
        "select kind, actor from action where target = %s and kind like 'breaker%%' and outcome ? 'state' order by at",
        queue,
    )
    return [(kind, actor if actor == "ann" else "service") for kind, actor in rows]


def _is_bound(operator: Operator, queue: str) -> bool:
    bound = Management(operator.installation.address).bindings_from("retry.gate.held")
    return any(one["routing_key"] == f"~to:{queue}" for one in bound)


def test_breaker_opens_at_the_share_and_holds_what_returns(operator: Serving) -> None:
    queue = _known(operator, "patient.opens")
    _count(operator, queue, 100, 9)  # too small a share
    _count(operator, "patient.quiet", 9, 9)  # too few
    _count(operator, "quick.other", 99, 99)  # no breaker
    _count(operator, queue, 0, 60)
    found = _wait(operator, queue, BreakerState.OPEN)
    assert (found.policy, found.reason, found.wait_s) == ("patient", "69 of 101 returns failed again", 3600)
    assert found.probe_at is not None
    assert found.since is not None
    assert found.probe_at - found.since > timedelta(minutes=59)
    wait_for(lambda: _is_bound(operator, queue), what="the held binding")
    operator.installation.request(queue, "held")
    wait_for(lambda: operator.installation.depth(f"retry.held.{queue}") == 1, what="the message to be held")
    paused = _paused(operator, queue)
    assert paused is not None
    assert paused.state == "holding"
    [by] = paused.pauses
    assert (by.scope, by.reason) == ("breaker", "69 of 101 returns failed again")
    assert {one.queue: one.state for one in operator.do(list_breakers)}[queue] is BreakerState.OPEN
    assert _kinds(operator, queue) == [("breaker_opened", "service")]
    assert operator.router.metric("tarry_breaker_state", destination=queue) == 3
    assert operator.router.metric("tarry_breaker_changes_total", destination=queue, to="open") == 1
    logged = operator.router.wait_logged("breaker opened")
    assert (logged["destination"], logged["level"], logged["wait_s"]) == (queue, "warning", 3600)
    with pytest.raises(NotFoundError, match=r"No policy of queue 'quick\.other' has a breaker"):
        operator.do(lambda context: open_breaker(context, _known(operator, "quick.other"), actor="ann"))


def test_breaker_probes_with_one_message_and_closes_slowly(operator: Serving) -> None:
    queue = _known(operator, "guarded.closes")
    _count(operator, queue, 10, 10)
    _wait(operator, queue, BreakerState.OPEN)
    for number in range(20):
        operator.installation.request(queue, f"m{number}")
    with _reporting(operator, queue) as seen:
        _wait(operator, queue, BreakerState.CLOSING)
        assert len(seen) < 10
        _wait(operator, queue, BreakerState.CLOSED)
        wait_for(lambda: len(seen) == 20, what="all to arrive")
    assert [kind for kind, _ in _kinds(operator, queue)] == [
        "breaker_opened",
        "breaker_half_opened",
        "breaker_closing",
        "breaker_closed",
    ]
    wait_for(lambda: _paused(operator, queue) is None, what="the pause to be over")
    assert not _is_bound(operator, queue)


@pytest.mark.one_series
def test_breaker_waits_for_a_message_and_never_closes_without_one(operator: Serving) -> None:
    queue = _known(operator, "guarded.nothing")
    _count(operator, queue, 10, 10)
    found = _wait(operator, queue, BreakerState.HALF_OPEN)
    wait_for(lambda: _breaker(operator, queue).problem is not None, what="it to say so")
    assert _breaker(operator, queue).problem == "it waits for a message to return, as a probe"
    assert _is_bound(operator, queue)
    operator.installation.request(queue, "probe")
    operator.installation.wait_message(queue)
    assert _breaker(operator, queue).since == found.since


@pytest.mark.one_series
def test_canary_that_was_cancelled_proves_nothing(operator: Serving) -> None:
    queue = _known(operator, "guarded.void")
    operator.do(lambda context: open_breaker(context, queue, actor="ann"))
    operator.installation.request(queue, "void")
    wait_for(lambda: operator.installation.depth(f"retry.held.{queue}") == 1, what="the message to be held")
    wait_for(lambda: operator.installation.states("void")[0][1] == "held", what="the audit to know it")
    hasty = Operator(operator.installation, OperatorLimits(outcome_timeout=timedelta(0)))
    assert hasty.do(lambda context: cancel(context, "void", actor="ann")).answer == "pending"
    operator.do(lambda context: free_breaker(context, queue, actor="ann"))
    wait_for(lambda: operator.installation.states("void")[0][1] == "cancelled", what="the canary to be cancelled")
    wait_for(lambda: _breaker(operator, queue).problem is not None, what="the breaker to want another one")
    operator.installation.request(queue, "proof")
    operator.installation.wait_message(queue)
    assert _breaker(operator, queue).state is BreakerState.HALF_OPEN


@pytest.mark.one_series
def test_breaker_opens_again_for_twice_as_long_when_the_release_fails(operator: Serving) -> None:
    queue = _known(operator, "guarded.again")
    _count(operator, queue, 10, 10)
    _wait(operator, queue, BreakerState.OPEN)
    for number in range(30):
        operator.installation.request(queue, f"again{number}")
    with _reporting(operator, queue):
        _wait(operator, queue, BreakerState.CLOSING)
        _count(operator, queue, 0, 40)
        found = _wait(operator, queue, BreakerState.OPEN)
        assert found.wait_s == 2
        paused = _paused(operator, queue)
    assert paused is not None
    assert paused.state == "holding"


@pytest.mark.one_series
def test_breaker_does_not_end_an_operators_pause(operator: Serving) -> None:
    queue = _known(operator, "guarded.paused")
    _count(operator, queue, 10, 10)
    _wait(operator, queue, BreakerState.HALF_OPEN)
    operator.do(lambda context: pause(context, queue, actor="ann"))
    found = _wait(operator, queue, BreakerState.OPEN)
    assert found.reason == "an operator has paused the queue"
    operator.installation.request(queue, "held")
    wait_for(lambda: operator.installation.depth(f"retry.held.{queue}") == 1, what="the message to be held")
    freed = operator.do(lambda context: free_breaker(context, queue, actor="ann"))
    assert (freed.state, operator.installation.depth(queue)) == (BreakerState.OPEN, 0)
    resumed = operator.do(lambda context: resume(context, queue, actor="ann"))
    assert (resumed.destinations, resumed.breakers, resumed.pauses_ended) == ([], {queue: "open"}, [queue])
    _wait(operator, queue, BreakerState.HALF_OPEN)  # by itself: its wait was over before
    operator.installation.wait_message(queue)


@pytest.mark.one_series
def test_resume_does_not_override_a_breaker_and_close_does(operator: Serving) -> None:
    queue = _known(operator, "patient.resume")
    _count(operator, queue, 10, 10)
    _wait(operator, queue, BreakerState.OPEN)
    operator.installation.request(queue, "held")
    with pytest.raises(ConflictError, match=r"its breaker is open.* tarry breakers close patient\.resume --reason"):
        operator.do(lambda context: resume(context, queue, actor="ann"))
    closed = operator.do(lambda context: close_breaker(context, queue, actor="ann", reason="it is fixed"))
    assert (closed.state, closed.forced_by, closed.forced_reason) == (BreakerState.CLOSED, "ann", "it is fixed")
    operator.installation.wait_message(queue)
    _count(operator, queue, 99, 99)
    wait_for(lambda: _paused(operator, queue) is None, what="the release to be over")
    assert _breaker(operator, queue).state is BreakerState.CLOSED
    freed = operator.do(lambda context: free_breaker(context, queue, actor="ann"))
    assert (freed.forced_by, freed.returned) == (None, 0)  # what was counted before does not open it
    _count(operator, queue, 99, 99)
    assert _wait(operator, queue, BreakerState.OPEN).wait_s == 3600


@pytest.mark.one_series
def test_breaker_that_an_operator_opens_stays_open_or_probes_after_a_time(operator: Serving) -> None:
    queue = _known(operator, "guarded.forced")
    opened = operator.do(lambda context: open_breaker(context, queue, actor="ann", reason="deploy"))
    assert (opened.state, opened.forced_by, opened.probe_at) == (BreakerState.OPEN, "ann", None)
    assert _is_bound(operator, queue)  # before the answer
    operator.installation.request(queue, "held")
    wait_for(lambda: operator.installation.depth(f"retry.held.{queue}") == 1, what="the message to be held")
    paused = _paused(operator, queue)
    assert paused is not None
    assert [(one.scope, one.actor, one.reason) for one in paused.pauses] == [("breaker", "ann", "deploy")]
    short = timedelta(milliseconds=1)
    operator.do(lambda context: open_breaker(context, queue, actor="ann", lasts=short))
    _wait(operator, queue, BreakerState.HALF_OPEN)
    operator.installation.wait_message(queue)
    assert _kinds(operator, queue)[:3] == [
        ("breaker_opened", "ann"),
        ("breaker_opened", "ann"),
        ("breaker_half_opened", "service"),
    ]


@pytest.mark.one_series
def test_breaker_that_has_opened_by_itself_probes_at_once_if_freed(operator: Serving) -> None:
    queue = _known(operator, "patient.freed")
    _count(operator, queue, 10, 10)
    opened = _wait(operator, queue, BreakerState.OPEN)
    assert opened.forced_by is None
    operator.installation.request(queue, "held")
    operator.do(lambda context: free_breaker(context, queue, actor="ann"))
    assert _wait(operator, queue, BreakerState.HALF_OPEN).wait_s == 3600
    operator.installation.wait_message(queue)


@pytest.mark.one_series
def test_breaker_of_a_throttled_queue_goes_back_to_the_throttle(operator: Serving) -> None:
    queue = _known(operator, "guarded.slow")
    operator.do(lambda context: throttle(context, queue, rate=4, actor="ann"))
    _count(operator, queue, 10, 10)
    _wait(operator, queue, BreakerState.OPEN)
    for number in range(12):
        operator.installation.request(queue, f"slow{number}")
    with _reporting(operator, queue) as seen:
        _wait(operator, queue, BreakerState.CLOSED)
        wait_for(lambda: len(seen) == 12, what="all to arrive")
        shown = _paused(operator, queue)
    assert shown is not None
    assert (shown.state, shown.throttle) == ("throttled", 4)


@pytest.mark.one_series
def test_breaker_that_is_not_in_the_files_any_more_ends(operator: Serving) -> None:
    """Its policy is the only one that changes: when the service reads the file again, no other test notices."""
    queue = _known(operator, "leaving.gone")
    _count(operator, queue, 10, 10)
    _wait(operator, queue, BreakerState.OPEN)
    operator.installation.request(queue, "held")
    wait_for(lambda: operator.installation.depth(f"retry.held.{queue}") == 1, what="the message to be held")
    file = operator.installation.folder / "tarry.toml"
    before = file.read_text(encoding="utf-8")
    file.write_text(before.replace('breaker = { of = 10, wait = "2h"', "#"), encoding="utf-8")
    operator.installation.wait_message(queue, deadline=60)
    wait_for(lambda: not _rows_of(operator, queue), deadline=60, what="the breaker to be forgotten")


def _rows_of(operator: Operator, queue: str) -> int:
    return operator.installation.number("select count(*) from breaker where destination = %s", queue)


@pytest.mark.one_series
@pytest.mark.parametrize("way", ["direct", "api"])
def test_breaker_at_a_terminal(operator: Serving, way: str) -> None:
    queue = _known(operator, f"patient.{way}")
    remote = {"TARRY_API": f"http://127.0.0.1:{operator.router.port}"} if way == "api" else {}
    environment = operator.installation.environment | {"TARRY_API": "", "TARRY_TOKEN": ""} | remote | WIDE

    def run(*words: str) -> tuple[int, str]:
        result = run_cli(words, environment)
        return result.exit_code, result.output

    opened = run("breakers", "open", queue, "--for", "30m", "--reason", "a deploy", "--requested-by", "ann")
    assert opened == (0, f"✓ {queue}: open (kept)\nautomatic again with: tarry breakers auto '{queue}'\n")
    actor = "local/ann" if way == "api" else "ann"
    shown = run("breakers")[1]
    assert f"{queue}: kept open by {actor} until 20" in shown
    assert "a deploy" in shown
    assert "held by its breaker, which opened" in run("pauses")[1]
    assert f"{queue}: paused for" in (status := run("status")[1])
    assert f"its breaker is open: opened by {actor}" in status
    resumed = run("resume", queue)
    assert (resumed[0], "its breaker is open" in resumed[1]) == (5, True)
    assert run("breakers", "close", queue)[0] == 2  # without a reason
    assert run("breakers", "close", queue, "--reason", "fixed")[1].startswith(f"✓ {queue}: closed (kept)\n")
    assert run("breakers", "auto", queue) == (0, f"✓ {queue}: closed\n")
    [found] = [one for one in json.loads(run("breakers", "list", "--json")[1]) if one["queue"] == queue]
    assert (found["state"], found["policy"], found["forced_by"]) == ("closed", "patient", None)
    assert run("breakers", "open", "quick.nobody")[0] == 4
    by_default = f"local/{current_user()}" if way == "api" else current_user()
    sql = "select kind, actor, detail ->> 'reason' from action where target = %s and kind like 'breaker%%' order by at"
    assert operator.installation.rows(sql, queue) == [
        ("breaker_opened", actor, "a deploy"),
        ("breaker_closed", by_default, "fixed"),
        ("breaker_automatic", by_default, None),
    ]


@pytest.mark.one_series
def test_breakers_of_a_limited_token_are_those_of_its_queues(operator: Serving) -> None:
    mine, theirs = _known(operator, "patient.mine"), _known(operator, "patient.theirs")

    async def act(context: OperatorContext) -> list[str]:
        for queue in (mine, theirs):
            await open_breaker(context, queue, actor="ann", reason=f"about {queue}")
        limited = ScopedOperations(LocalOperations(context, "ben"), "team", QueueScope((mine,)))
        with pytest.raises(NotFoundError, match="No destination is called"):
            await limited.close_breaker(theirs, reason="x")
        with pytest.raises(ForbiddenError):
            await limited.open_breaker("patient.*")
        assert (await limited.close_breaker(mine, reason="x")).forced_by == "ben"
        await limited.open_breaker(mine, reason="again")
        shown = (await limited.show_pauses()).paused_destinations
        assert [(one.destination, [by.reason for by in one.pauses]) for one in shown] == [(mine, ["again"])]
        return [one.queue for one in await limited.list_breakers()]

    assert operator.do(act) == [mine]


@pytest.mark.one_series
def test_breaker_refuses_what_is_no_queue(operator: Serving) -> None:
    for name in ("exchange:events", "policy NAME"):
        with pytest.raises((ControlError, NotFoundError)):
            operator.do(lambda context, name=name: open_breaker(context, name, actor="ann"))  # type: ignore[misc]
    _known(operator, "guarded.a")
    with pytest.raises(ControlError, match=r"'guarded\.\*' is not a queue"):
        operator.do(lambda context: open_breaker(context, "guarded.*", actor="ann"))
    with pytest.raises(NotFoundError, match=r"No retry ever went to 'guarded\.typo'"):
        operator.do(lambda context: close_breaker(context, "guarded.typo", actor="ann", reason="x"))
