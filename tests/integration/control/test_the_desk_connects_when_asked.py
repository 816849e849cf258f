"""One desk for all of an operator's actions: nothing is opened before it is needed, and what breaks is opened again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest

from tarry.broker.address import Address
from tarry.broker.publisher import Message, Outcome
from tarry.contract.properties import Properties
from tarry.control.actions import recorded
from tarry.control.desk import Desk
from tarry.errors import AuditUnavailableError, BrokerUnreachableError, ConflictError, MissingOnBrokerError
from tarry.topology.model import Topology
from tests.harness.proxy import Proxy
from tests.integration.router.serving import Place

NOBODY = Address.parse("amqp://guest:guest@127.0.0.1:1/")
NO_BOOKS = "postgresql://nobody@127.0.0.1:1/none"


def _actions(dsn: str) -> list[tuple[str, str, str, dict[str, str] | None]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute("select actor, kind, target, outcome from action order by at").fetchall()


def test_a_desk_opens_with_neither_broker_nor_postgres_and_says_so_when_asked(topology: Topology) -> None:
    async def story() -> None:
        async with Desk.open(topology, NOBODY, NO_BOOKS, actor="me") as desk:
            with pytest.raises(BrokerUnreachableError, match="No broker answers"):
                await desk.bind("a", "b", "c")
            with pytest.raises(AuditUnavailableError, match="Postgres does not answer"):
                await desk.books.rows("clock")

    asyncio.run(story())


def test_a_binding_to_what_is_not_there_is_told_and_the_next_one_works(place: Place, topology: Topology) -> None:
    async def story() -> None:
        async with Desk.open(topology, place.address, place.dsn, actor="me") as desk:
            with pytest.raises(MissingOnBrokerError, match="no queue 'nowhere'"):
                await desk.bind("nowhere", desk.names.held_gate, "~to:nowhere")
            await desk.bind(desk.names.cancelled, desk.names.cancelled_gate, "~id:x:1")
            probe = Message(desk.names.cancelled_gate, "~id:x:1", Properties(), b"probe", "x:1")
            assert await desk.publish([probe]) == [Outcome.CONFIRMED]
            await desk.unbind(desk.names.cancelled, desk.names.cancelled_gate, "~id:x:1")
            await desk.unbind(desk.names.cancelled, desk.names.cancelled_gate, "~id:x:1")
            assert await desk.binder.depth(desk.names.cancelled) == 1
            assert (await desk.binder.version())[0] in (3, 4)

    asyncio.run(story())


def test_a_cut_connection_is_opened_again(
    place: Place, topology: Topology, proxy: Callable[[str | tuple[str, int]], Proxy]
) -> None:
    between = proxy(place.amqp_url)
    address = Address.parse(place.amqp_url.replace(f":{place.address.port}/", f":{between.port}/"))

    async def story() -> None:
        async with Desk.open(topology, address, place.dsn, actor="me") as desk:
            await desk.bind(desk.names.cancelled, desk.names.cancelled_gate, "~id:x:1")
            probe = Message(desk.names.cancelled_gate, "~id:x:1", Properties(), b"probe", "x:1")
            assert await desk.publish([probe]) == [Outcome.CONFIRMED]
            await asyncio.to_thread(between.cut)
            await desk.bind(desk.names.cancelled, desk.names.cancelled_gate, "~id:x:2")
            outcomes = await desk.publish([probe])
            if outcomes == [Outcome.UNKNOWN]:  # the end of the old connection may not have been noticed yet
                outcomes = await desk.publish([probe])
            assert outcomes == [Outcome.CONFIRMED]

    asyncio.run(story())


def test_an_action_is_written_with_what_came_of_it(place: Place, topology: Topology) -> None:
    async def story() -> None:
        async with Desk.open(topology, place.address, place.dsn, actor="me") as desk:
            async with recorded(desk.books, kind="cancel", target="one", actor="ann") as action:
                action.outcome = {"answer": "cancelled"}
            with pytest.raises(ConflictError):
                async with recorded(desk.books, kind="cancel", target="two", actor="bob"):
                    raise ConflictError("already returned")

    asyncio.run(story())
    assert _actions(place.dsn) == [
        ("ann", "cancel", "one", {"answer": "cancelled"}),
        ("bob", "cancel", "two", {"error": "already returned", "type": "ConflictError"}),
    ]


def test_without_postgres_an_action_is_not_begun(topology: Topology) -> None:
    begun = []

    async def story() -> None:
        async with (
            Desk.open(topology, NOBODY, NO_BOOKS, actor="me") as desk,
            recorded(desk.books, kind="cancel", target="one", actor="ann"),
        ):
            begun.append(1)

    with pytest.raises(AuditUnavailableError):
        asyncio.run(story())
    assert begun == []


def test_a_lock_is_had_by_one_at_a_time(place: Place, topology: Topology) -> None:
    async def story() -> None:
        async with Desk.open(topology, place.address, place.dsn, actor="me") as desk:
            async with desk.books.lock(7) as first, desk.books.lock(7) as second:
                assert first is not None
                assert second is None
            async with desk.books.lock(7) as again:
                assert again is not None

    asyncio.run(story())
