"""What is overdue, missing or stalled is found; success is presumed; each is written once."""

from __future__ import annotations

from datetime import timedelta

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError

from tarry.audit.depths import read_depths
from tarry.audit.stalls import Stall
from tarry.audit.upkeep import Keeper, Upkeep
from tarry.broker.address import Address
from tarry.broker.declare import channel
from tarry.broker.management import Management
from tarry.core.ladder import itinerary
from tarry.core.names import Names
from tarry.topology.apply import apply
from tarry.topology.model import Topology
from tests.harness.spaces import Vhost
from tests.harness.waiting import wait_for
from tests.integration.audit.books import Books, id_of, request

POLICY = {"name": "default", "schedule": ["250ms"], "max_retries": 2}
TOPOLOGY = Topology.model_validate({"policy": [POLICY], "ladder": {"levels": 2}})
M = id_of("m")


@pytest.fixture
def keeper(books: Books, vhost: Vhost) -> Keeper:
    address = Address.parse(vhost.amqp_url, management_url=vhost.management_url)
    apply(TOPOLOGY, address)
    quiet = Upkeep(quiet=timedelta(minutes=15), keep=timedelta(days=30))
    return Keeper(books.dsn, Names(), Management(address), "keeper", quiet)


def test_a_quiet_return_is_taken_for_success_and_a_later_failure_takes_it_back(books: Books, keeper: Keeper) -> None:
    books.claim(request("m"))
    books.schedule(M, 1, due_in_ms=-10)
    books.see(M, 1)
    assert keeper().presumed == 0
    books.age(M, 16 * 60)
    assert keeper().presumed == 1
    assert keeper().presumed == 0
    assert books.state(M)[0] == "succeeded"
    actor = books.sql.execute("select actor from transition where state = 'succeeded'").fetchall()
    assert actor == [("presumed",)]
    assert books.claim(request("m", round_=1, count=1))[M].round == 2


def test_an_overdue_round_is_noted_once(books: Books, keeper: Keeper) -> None:
    books.claim(request("m"))
    books.schedule(M, 1, tier="retry.delay.250ms")
    books.age(M, 60 + 40)
    found = keeper()
    assert (found.noted, found.counts.overdue, found.missing, found.late) == (1, 1, 0, 0)
    assert 40 <= found.oldest_overdue_s < 400
    found = keeper()
    assert (found.noted, found.missing) == (0, 1), "missing at two looks in a row"
    books.claim(request("m", round_=1, count=1))
    books.schedule(M, 2, tier="retry.delay.250ms")
    books.age(M, 60 + 40)
    assert keeper().noted == 1, "another round"


def test_only_one_of_two_writes(books: Books, keeper: Keeper) -> None:
    books.claim(request("m"))
    books.schedule(M, 1, tier="retry.delay.250ms")
    books.age(M, 60 + 40)
    books.sql.execute("select pg_advisory_lock(7312002)")
    found = keeper()
    assert (found.noted, found.counts.overdue) == (0, 1), "the reading is everybody's"
    books.sql.execute("select pg_advisory_unlock(7312002)")
    assert keeper().noted == 1


def fill(opened: BlockingChannel, queue: str) -> None:
    """Until it refuses: a quorum queue takes some more than its limit."""
    for _ in range(100):
        opened.basic_publish("", queue, b"x")


def test_a_stalled_relay_is_flagged_with_the_destination_behind_it(books: Books, keeper: Keeper) -> None:
    full = {"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish"}
    with channel(keeper.management.address, "test") as opened:
        opened.confirm_delivery()
        opened.queue_declare("full", durable=True, arguments=full)
        opened.queue_bind("full", "retry.deliver", "~to:full")
        with pytest.raises(NackError):
            fill(opened, "full")
        way = itinerary(TOPOLOGY.rules.ladder, 250, TOPOLOGY.rules.tiers).keys
        about = pika.BasicProperties(delivery_mode=2, headers={"BCC": [*way, "~to:full"]})
        for _ in range(6):
            opened.basic_publish("retry.delay", "key", b"x", about)
    books.sql.execute(
        "insert into retry (id, queue, state, round, returned_round, tier, returned_at)"
        " values (gen_random_uuid(), 'full', 'returned', 1, 1, 'retry.delay.250ms', clock_timestamp())"
    )

    def stuck() -> int:
        return read_depths(keeper.management, Names())["retry.relay"].moving

    held = wait_for(stuck, what="the relay to hold what its destination refuses")
    assert keeper().stalled == (), "one look is not enough"
    assert keeper().stalled == (Stall("retry.relay", held, ("full",)),)
