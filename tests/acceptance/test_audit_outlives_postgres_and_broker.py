"""Postgres away in the middle of the traffic; the broker's data gone for good."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tarry import embedded
from tests.acceptance.audit_world import Worker, World, ask_all
from tests.harness.spaces import Database, Vhost
from tests.harness.waiting import wait_for

AWAY = float(os.environ.get("TARRY_AUDIT_AWAY", "5"))
"""Seconds without Postgres; the full size is 30."""
RATE = int(os.environ.get("TARRY_AUDIT_RATE", "200"))
"""Requests a second meanwhile; the full size is 1,000."""
LOST = int(os.environ.get("TARRY_AUDIT_LOST", "300"))
"""Messages that the broker loses; the full size is 5,000."""
LATE = int(os.environ.get("TARRY_AUDIT_LATE_MS", "20000"))
"""How late the latest may be. That they return while Postgres is away is counted below, before it comes back; at full
size this is 4 s of 30, here it is a busy machine's due."""


@pytest.mark.timeout(300 + 4 * AWAY)
def test_while_postgres_is_away_nothing_is_late_and_afterwards_the_books_are_complete(
    vhost: Vhost, private_postgres: Callable[[], embedded.EmbeddedPostgres], tmp_path: Path
) -> None:
    postgres = private_postgres()
    with closing(World(vhost.amqp_url, vhost.management_url, postgres.dsn(), tmp_path / "topology")) as world:
        world.apply()
        queue = world.declare("orders")
        world.start()
        ids = [str(number) for number in range(int(RATE * (AWAY + 4)))]
        asking = threading.Thread(target=ask_all, args=(world, queue, ids), kwargs={"rate": RATE})
        with Worker(world, queue) as worker:
            asking.start()
            wait_for(lambda: worker.total > RATE, what="the first second's returns")
            before = worker.total
            postgres.stop()
            wait_for(
                lambda: worker.total > before + RATE * AWAY, deadline=30 + 2 * AWAY, what="returns without Postgres"
            )
            postgres.start()
            asking.join()
            wait_for(lambda: worker.total >= len(ids), deadline=60, what="all returns")
        assert worker.seen == dict.fromkeys(ids, 1)
        assert (min(worker.drifts) >= 0, max(worker.drifts) < LATE) == (True, True), max(worker.drifts)
        wait_for(
            lambda: world.number("select count(*) from transition where state = 'returned'") == len(ids),
            deadline=60 + AWAY,
            what="the tap to catch up",
        )
        wait_for(lambda: world.verify() == (0, [], []), what="the books to balance")
        assert world.number("select count(*) from retry where state = 'returned' and body is not null") == len(ids)
        spooled = "select count(*) from (select from transition where state = 'scheduled' group by retry_id) as rounds"
        assert world.number(spooled) == len(ids)
        early = "select count(*) from transition where state = 'returned' and (detail ->> 'drift_ms')::int < 0"
        assert world.number(early) == 0


@pytest.mark.timeout(300 + LOST // 20)
def test_what_a_broker_loses_with_its_data_comes_back_from_the_books(
    private_broker: Callable[[], embedded.Broker], database: Database, tmp_path: Path
) -> None:
    broker = private_broker()
    if not isinstance(broker, embedded.EmbeddedBroker):
        pytest.skip("its data folder is in a container")
    with closing(World(broker.amqp_url, broker.management_url, database.dsn, tmp_path / "topology")) as world:
        world.apply()
        queue = world.declare("orders")
        world.start()
        chance = random.Random(7)
        ids = [str(number) for number in range(LOST)]
        ask_all(world, queue, ids, headers=lambda: {"retry_after_ms": chance.randrange(15_000, 25_000)})
        open_ = "select count(*) from retry where state = 'scheduled'"
        wait_for(lambda: world.number(open_) == LOST, deadline=60, what="all to be scheduled")

        broker.kill()
        shutil.rmtree(broker.data_dir / "mnesia")
        broker.start()
        world.apply()
        world.declare(queue)
        code, done = world.command("audit", "recover", "--yes", "--grace", "2s", "--patience", "3s")
        assert (code, done["not_rebuilt"], done["no_queue"]) == (0, [], [])
        with Worker(world, queue) as worker:
            if done["sent"] < LOST:
                # What was about to come due when it looked is in flight, as far as it could tell, until it is overdue.
                wait_for(lambda: _recover_the_rest(world), deadline=60, what="the last ones to be sent again")
            wait_for(lambda: len(worker.seen) == LOST, deadline=90, what=f"all {LOST} to arrive")
        assert worker.seen == dict.fromkeys(ids, 1)
        assert min(worker.drifts) >= 0
        assert world.number("select count(*) from transition where state = 'recovered'") == LOST
        wait_for(lambda: world.verify() == (0, [], []), what="the books to balance")


def _recover_the_rest(world: World) -> bool:
    world.audit("recover", "--yes", "--grace", "2s", "--patience", "0s")
    return world.number("select count(*) from retry where state = 'scheduled' and expected_at < clock_timestamp()") == 0
