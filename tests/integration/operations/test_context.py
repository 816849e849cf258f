"""One context for all of an operator's actions: connections open when they are needed, and reopen when they break."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest

from tarry.amqp.properties import Properties
from tarry.amqp.publisher import Message, PublishOutcome
from tarry.amqp.url import Address
from tarry.errors import AuditUnavailableError, BrokerUnreachableError, ConflictError, MissingOnBrokerError
from tarry.operations.action_log import recorded
from tarry.operations.context import OperatorContext
from tarry.topology.model import Topology
from tests.support.installation import Installation
from tests.support.proxy import Proxy

NOBODY = Address.parse("amqp://guest:guest@127.0.0.1:1/")
NO_POSTGRES = "postgresql://nobody@127.0.0.1:1/none"


def _actions(dsn: str) -> list[tuple[str, str, str, dict[str, str] | None]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute("select actor, kind, target, outcome from action order by at").fetchall()


def test_a_context_opens_without_broker_and_postgres_and_says_so_later(topology: Topology) -> None:
    async def story() -> None:
        async with OperatorContext.open(topology, NOBODY, NO_POSTGRES, actor="me") as context:
            with pytest.raises(BrokerUnreachableError, match="No broker answers"):
                await context.bind("a", "b", "c")
            with pytest.raises(AuditUnavailableError, match="Postgres does not answer"):
                await context.store.rows("clock")

    asyncio.run(story())


def test_a_binding_to_what_is_not_there_is_told_and_the_next_one_works(
    installation: Installation, topology: Topology
) -> None:
    async def story() -> None:
        async with OperatorContext.open(topology, installation.address, installation.dsn, actor="me") as context:
            with pytest.raises(MissingOnBrokerError, match="no queue 'nowhere'"):
                await context.bind("nowhere", context.names.held_gate, "~to:nowhere")
            await context.bind(context.names.cancelled, context.names.cancelled_gate, "~id:x:1")
            probe = Message(context.names.cancelled_gate, "~id:x:1", Properties(), b"probe", "x:1")
            assert await context.publish([probe]) == [PublishOutcome.CONFIRMED]
            await context.unbind(context.names.cancelled, context.names.cancelled_gate, "~id:x:1")
            await context.unbind(context.names.cancelled, context.names.cancelled_gate, "~id:x:1")
            assert await context.binder.depth(context.names.cancelled) == 1
            assert (await context.binder.version())[0] in (3, 4)

    asyncio.run(story())


def test_a_cut_connection_is_opened_again(
    installation: Installation, topology: Topology, proxy: Callable[[str | tuple[str, int]], Proxy]
) -> None:
    between = proxy(installation.amqp_url)
    address = Address.parse(installation.amqp_url.replace(f":{installation.address.port}/", f":{between.port}/"))

    async def story() -> None:
        async with OperatorContext.open(topology, address, installation.dsn, actor="me") as context:
            await context.bind(context.names.cancelled, context.names.cancelled_gate, "~id:x:1")
            probe = Message(context.names.cancelled_gate, "~id:x:1", Properties(), b"probe", "x:1")
            assert await context.publish([probe]) == [PublishOutcome.CONFIRMED]
            await asyncio.to_thread(between.cut)
            await context.bind(context.names.cancelled, context.names.cancelled_gate, "~id:x:2")
            outcomes = await context.publish([probe])
            if outcomes == [PublishOutcome.UNKNOWN]:  # the end of the old connection may not have been noticed yet
                outcomes = await context.publish([probe])
            assert outcomes == [PublishOutcome.CONFIRMED]

    asyncio.run(story())


def test_an_action_is_written_with_what_came_of_it(installation: Installation, topology: Topology) -> None:
    async def story() -> None:
        async with OperatorContext.open(topology, installation.address, installation.dsn, actor="me") as context:
            async with recorded(context.store, kind="cancel", target="one", actor="ann") as action:
                action.outcome = {"answer": "cancelled"}
            with pytest.raises(ConflictError):
                async with recorded(context.store, kind="cancel", target="two", actor="bob"):
                    raise ConflictError("already returned")

    asyncio.run(story())
    assert _actions(installation.dsn) == [
        ("ann", "cancel", "one", {"answer": "cancelled"}),
        ("bob", "cancel", "two", {"error": "already returned", "type": "ConflictError"}),
    ]


def test_without_postgres_an_action_is_not_begun(topology: Topology) -> None:
    begun = []

    async def story() -> None:
        async with (
            OperatorContext.open(topology, NOBODY, NO_POSTGRES, actor="me") as context,
            recorded(context.store, kind="cancel", target="one", actor="ann"),
        ):
            begun.append(1)

    with pytest.raises(AuditUnavailableError):
        asyncio.run(story())
    assert begun == []


def test_a_lock_is_had_by_one_at_a_time(installation: Installation, topology: Topology) -> None:
    async def story() -> None:
        async with OperatorContext.open(topology, installation.address, installation.dsn, actor="me") as context:
            async with context.store.lock(7) as first, context.store.lock(7) as second:
                assert first is not None
                assert second is None
            async with context.store.lock(7) as again:
                assert again is not None

    asyncio.run(story())
