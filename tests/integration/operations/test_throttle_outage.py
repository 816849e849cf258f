"""Throttled messages keep returning while Postgres is stopped, each once, and the audit is complete afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tarry import embedded
from tarry.operations.paused_destination import read_paused_destinations
from tarry.operations.throttle import throttle
from tarry.store.database import migrate
from tests.integration.operations.operators import Operator
from tests.integration.operations.witness import Witness
from tests.support.installation import Installation
from tests.support.router import start_router
from tests.support.spaces import Vhost
from tests.support.waiting import wait_for

QUEUE = "quick.orders"


@pytest.mark.one_series
def test_throttle_goes_on_while_postgres_is_stopped(
    vhost: Vhost, private_postgres: Callable[..., embedded.EmbeddedPostgres], tmp_path: Path
) -> None:
    postgres = private_postgres()
    asyncio.run(migrate(postgres.dsn()))
    folder = tmp_path / "topology"
    with closing(Installation(vhost.amqp_url, vhost.management_url, postgres.dsn(), folder).apply()) as installation:
        operator, router = Operator(installation), start_router(installation)
        try:
            router.wait_ready()
            installation.declare(QUEUE)
            installation.request(QUEUE, "first")
            installation.wait_message(QUEUE)
            operator.do(lambda context: throttle(context, QUEUE, rate=10, actor="ann"))
            with Witness(installation.amqp_url, QUEUE) as witness:
                _request(installation, range(10))
                wait_for(lambda: len(witness.seen) >= 3, what="some to arrive")
                postgres.stop()
                _request(installation, range(10, 30))
                wait_for(lambda: len(witness.seen) >= 30, deadline=60, what="all to arrive without Postgres")
                postgres.start()
                wait_for(lambda: installation.transitions("returned") == 31, deadline=60, what="all in the audit")
                _request(installation, range(30, 35))
                wait_for(lambda: len(witness.seen) >= 35, what="those that come later")
            assert sorted(witness.rounds().items()) == [(f"m{number:03}", [1]) for number in range(35)]
            [shown] = operator.do(read_paused_destinations)
            assert (shown.state, shown.throttle) == ("releasing", 10)
        finally:
            router.kill()


def _request(installation: Installation, numbers: range) -> None:
    for number in numbers:
        installation.request(QUEUE, f"m{number:03}")
