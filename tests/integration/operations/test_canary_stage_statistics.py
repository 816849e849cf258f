"""A canary at a destination that hangs, with a usual broker and a usual service: their statistics are seconds old.

Statistics from before the release would say that all is acknowledged. The other tests have a quicker broker.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from tarry.operations.pause import pause, resume, show_pauses
from tests.integration.operations.operators import Operator
from tests.integration.operations.witness import Witness
from tests.support.installation import Installation
from tests.support.router import Router
from tests.support.waiting import wait_for

QUEUE = "quick.orders"


@pytest.mark.chaos
def test_a_canary_stops_at_a_destination_that_hangs_until_it_acknowledges(
    installation: Installation, start: Callable[..., Router]
) -> None:
    operator = Operator(installation)
    start().wait_ready()
    installation.declare(QUEUE)
    installation.request(QUEUE, "first")
    installation.wait_message(QUEUE)
    operator.do(lambda context: pause(context, QUEUE, actor="ann"))
    for number in range(3):
        installation.request(QUEUE, f"m{number}")
    wait_for(lambda: installation.depth(f"retry.held.{QUEUE}") == 3, deadline=60, what="all to be held")
    with Witness(installation.amqp_url, QUEUE, hangs=True) as witness:
        operator.do(lambda context: resume(context, QUEUE, actor="ann", canary=True, observe=timedelta(seconds=1)))

        def stopped() -> bool:
            installation.connection.process_data_events()  # its heartbeats
            return any(one.problem for one in operator.do(show_pauses).paused_destinations)

        wait_for(stopped, deadline=120, what="a problem to be shown")
        [paused] = operator.do(show_pauses).paused_destinations
        assert "acknowledged 0 of 1 (0 ready, 1 unacknowledged)" in str(paused.problem)
        assert (paused.state, paused.stage) == ("releasing", "canary of 1")
        assert (len(witness.seen), installation.depth(f"retry.held.{QUEUE}")) == (1, 2)
        witness.hangs = False
        wait_for(lambda: len(witness.seen) == 3, deadline=120, what="the others, once the canary is acknowledged")
        wait_for(lambda: not operator.do(show_pauses).paused_destinations, deadline=120, what="the release to be over")
