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
from tests.acceptance.audited import AuditedInstallation, Worker, request_all
from tests.support.spaces import Database, Vhost
from tests.support.waiting import wait_for

AWAY = float(os.environ.get("TARRY_AUDIT_AWAY", "2"))
"""Seconds without Postgres; the full size is 30."""
RATE = int(os.environ.get("TARRY_AUDIT_RATE", "100"))
"""Requests a second meanwhile; the full size is 1,000."""
LOST = int(os.environ.get("TARRY_AUDIT_LOST", "100"))
"""Messages that the broker loses; the full size is 5,000."""
SOONEST_MS = 8_000 + 2 * LOST
"""None returns before the broker is killed."""
SENT_AGAIN = "select count(*) from transition where state = 'recovered'"
NOT_SENT_AGAIN = """
select count(*) from retry
 where not exists (select from transition where retry_id = retry.id and transition.state = 'recovered')
"""
NOT_RETURNED = """
select string_agg(concat_ws(' ', message_id, state, round, tier), ', ') from retry where state <> 'returned'
"""
LATE = int(os.environ.get("TARRY_AUDIT_LATE_MS", "20000"))
"""How late the latest may be. That they return while Postgres is away is counted below, before it comes back; at full
size this is 4 s of 30, here it is a busy machine's due."""


@pytest.mark.timeout(300 + 4 * AWAY)
def test_without_postgres_nothing_is_late_and_later_the_audit_is_complete(
    vhost: Vhost, private_postgres: Callable[[], embedded.EmbeddedPostgres], tmp_path: Path
) -> None:
    postgres = private_postgres()
    with closing(
        AuditedInstallation(vhost.amqp_url, vhost.management_url, postgres.dsn(), tmp_path / "topology").apply()
    ) as installation:
        queue = installation.declare("orders")
        installation.start()
        ids = [str(number) for number in range(int(RATE * (AWAY + 4)))]
        asking = threading.Thread(target=request_all, args=(installation, queue, ids), kwargs={"rate": RATE})
        with Worker(installation, queue) as worker:
            asking.start()
            wait_for(lambda: worker.total > RATE, what="the first second's returns")
            before = worker.total
            postgres.stop()
            wait_for(
                lambda: worker.total > before + RATE * AWAY, deadline=60 + 2 * AWAY, what="returns without Postgres"
            )
            postgres.start()
            asking.join()
            wait_for(lambda: worker.total >= len(ids), deadline=120, what="all returns")
        assert worker.seen == dict.fromkeys(ids, 1)
        assert (min(worker.drifts) >= 0, max(worker.drifts) < LATE) == (True, True), max(worker.drifts)
        wait_for(
            lambda: installation.number("select count(*) from transition where state = 'returned'") == len(ids),
            deadline=120 + AWAY,
            what="the tap to catch up",
        )
        installation.wait_verified()
        assert installation.number("select count(*) from retry where state = 'returned' and body is not null") == len(
            ids
        )
        spooled = "select count(*) from (select from transition where state = 'scheduled' group by retry_id) as rounds"
        assert installation.number(spooled) == len(ids)
        early = "select count(*) from transition where state = 'returned' and (detail ->> 'drift_ms')::int < 0"
        assert installation.number(early) == 0


@pytest.mark.timeout(300 + LOST // 20)
def test_what_a_broker_loses_with_its_data_comes_back_from_the_store(
    private_broker: Callable[[], embedded.Broker], database: Database, tmp_path: Path
) -> None:
    broker = private_broker()
    if not isinstance(broker, embedded.EmbeddedBroker):
        pytest.skip("its data folder is in a container")
    with closing(
        AuditedInstallation(broker.amqp_url, broker.management_url, database.dsn, tmp_path / "topology").apply()
    ) as installation:
        queue = installation.declare("orders")
        installation.start()
        chance = random.Random(7)
        ids = [str(number) for number in range(LOST)]
        request_all(installation, queue, ids, headers=lambda: {"retry_after_ms": SOONEST_MS + chance.randrange(6_000)})
        open_ = "select count(*) from retry where state = 'scheduled'"
        wait_for(lambda: installation.number(open_) == LOST, deadline=120, what="all to be scheduled")

        broker.kill()
        shutil.rmtree(broker.data_dir / "mnesia")
        broker.start()
        installation.apply()
        installation.declare(queue)
        code, done = installation.audit("recover", "--yes", "--grace", "2s", "--patience", "3s")
        assert (code, done["not_rebuilt"], done["no_queue"]) == (0, [], [])
        with Worker(installation, queue) as worker:
            # What was about to come due when it looked is in flight, as far as it could tell, until it is overdue.
            installation.wait_checking(lambda: _all_sent_again(installation), "the last ones to be sent again")
            _wait_arrived(installation, worker, ids)
        # On a busy machine one that is on its way may be overdue by the grace: it is sent twice, and the audit says so.
        assert sum(worker.seen.values()) <= installation.number(SENT_AGAIN)
        assert min(worker.drifts) >= 0
        installation.wait_verified()


def _all_sent_again(installation: AuditedInstallation) -> bool:
    """After another recovery if some are left."""
    if not installation.number(NOT_SENT_AGAIN):
        return True
    installation.audit("recover", "--yes", "--grace", "5s", "--patience", "0s")
    return False


def _wait_arrived(installation: AuditedInstallation, worker: Worker, ids: list[str]) -> None:
    try:
        wait_for(lambda: set(worker.seen.copy()) == set(ids), deadline=120, what=f"all {LOST} to arrive")
    except AssertionError as failure:
        failure.add_note(f"not returned: {installation.text(NOT_RETURNED)}")
        raise
