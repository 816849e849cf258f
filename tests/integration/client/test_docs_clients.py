"""The Python blocks of docs/clients.md, run as they stand against a broker."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aio_pika
import pika
import psycopg
import pytest

from tarry.client import Attempt, Classes, MemoryDeduplicator, Options, Verdict
from tarry.client.aio_pika import Retries as AioRetries
from tarry.client.deduplicator_postgres import TABLE
from tarry.client.pika import Retries
from tests.integration.client.installation import QUEUE, ClientInstallation
from tests.support.amqp import open_connection
from tests.support.spaces import Database
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series

PAGE = (Path(__file__).parents[3] / "docs" / "clients.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def block(part: str) -> str:
    """The only block that has this text."""
    (found,) = [text for text in BLOCKS if part in text]
    return str(found)


def run(part: str, space: dict[str, Any], **changed: str) -> None:
    """Runs the block that has this text, in this space."""
    text = block(part)
    for old, new in changed.items():
        text = text.replace(old, new)
    exec(text, space)  # noqa: S102  our own page


class ShopClosedError(Exception):
    """As the page's `ShopClosed`."""


class Shop:
    """What the page's handlers call; it does as it is told."""

    def __init__(self) -> None:
        self.shipped: list[object] = []
        self.known, self.busy, self.warned = True, False, 0
        self.problem: Exception | None = None

    def ship(self, order: object) -> None:
        if self.problem is not None:
            raise self.problem
        self.shipped.append(order)

    async def ship_async(self, order: object) -> None:
        self.ship(order)

    def warn(self) -> None:
        self.warned += 1

    @property
    def names(self) -> dict[str, Any]:
        return {
            "find_order": lambda body: body if self.known else None,
            "shop_is_busy": lambda: self.busy,
            "warn_the_customer": self.warn,
            "ship": self.ship,
        }


def request(installation: ClientInstallation, connection: pika.BlockingConnection) -> dict[str, Any]:
    """The headers of the next request, for which the consumer's connection must run."""

    def is_there() -> bool:
        connection.process_data_events(0.05)
        return installation.depth("retry.scheduled") > 0

    wait_for(is_there, what="a request")
    return installation.take().headers


def handled(connection: pika.BlockingConnection, is_done: Callable[[], bool]) -> None:
    def run() -> bool:
        connection.process_data_events(0.05)
        return is_done()

    wait_for(run, what="the handler to run")


def test_docs_clients_blocks_of_python_are_all_run_here() -> None:
    parts = (
        '@retries.handler("orders")  # the queue',
        "def on_message_by_hand",
        "ThreadPoolExecutor",
        "await queue.consume",
        "classes=Classes",
        "owner=lambda",
        "MemoryDeduplicator()",
        "deduplicator_postgres",
    )
    assert sorted(BLOCKS) == sorted(map(block, parts))


def test_docs_clients_pika_handler_ends_as_its_comments_say(installation: ClientInstallation) -> None:
    shop = Shop()
    with open_connection(installation.amqp_url) as connection:
        space = {"connection": connection, "channel": connection.channel()} | shop.names
        run("# the queue it consumes from", space)
        installation.publish(b"first", "m-1")
        handled(connection, lambda: shop.shipped == [b"first"])
        shop.known = False
        installation.publish(b"second", "m-2")
        assert request(installation, connection)["error_class"] == "final"
        shop.known, shop.busy = True, True
        installation.publish(b"third", "m-3")
        found = request(installation, connection)
        assert (found["error_class"], found["retry_after_ms"]) == ("rate_limited", 30_000)
        shop.busy, shop.problem = False, ValueError("no truck")
        last = {
            "tarry-id": "0a0a0a0a-0b0b-5c0c-8d0d-0e0e0e0e0e0e",
            "tarry-round": 3,
            "tarry-count": 3,
            "tarry-max-retries": 3,
            "tarry-queue": QUEUE,
        }
        installation.publish(b"fourth", "m-4", headers=last)
        found = request(installation, connection)
        assert (found["error_reason"], shop.warned, "error_class" in found) == ("no truck", 1, False)


@pytest.mark.parametrize("name", ["on_message", "on_message_by_hand"])
def test_docs_clients_plain_calls_settle_and_request(installation: ClientInstallation, name: str) -> None:
    shop = Shop()
    with open_connection(installation.amqp_url) as connection:
        defined: dict[str, Any] = {"retries": Retries(connection)} | shop.names
        run("def on_message_by_hand", defined)
        connection.channel().basic_consume(QUEUE, defined[name])
        installation.publish(b"good", "m-1")
        handled(connection, lambda: shop.shipped == [b"good"])
        shop.problem = ValueError("no truck")
        installation.publish(b"bad", "m-2")
        assert request(installation, connection)["error_reason"] == "no truck"
    assert installation.depth(QUEUE) == 0


def test_docs_clients_handler_with_a_pool_settles(installation: ClientInstallation) -> None:
    shop = Shop()
    with open_connection(installation.amqp_url) as connection:
        channel, retries = connection.channel(), Retries(connection)
        space: dict[str, Any] = {"ThreadPoolExecutor": ThreadPoolExecutor, "channel": channel, "retries": retries}
        space |= shop.names
        run("ThreadPoolExecutor", space)
        channel.basic_consume(QUEUE, space["handle"])
        installation.publish(b"good", "m-1")
        handled(connection, lambda: shop.shipped == [b"good"])
        shop.problem = ValueError("no truck")
        installation.publish(b"bad", "m-2")
        assert request(installation, connection)["error_reason"] == "no truck"
        retries.close()
        space["pool"].shutdown()
    assert installation.depth(QUEUE) == 0


def test_docs_clients_aio_pika_handler_settles(installation: ClientInstallation) -> None:
    shop = Shop()
    installation.publish(b"good", "m-1")

    async def consume() -> None:
        async with await aio_pika.connect(installation.amqp_url) as connection:
            queue = await (await connection.channel()).get_queue(QUEUE)
            space = {"connection": connection, "queue": queue, "ship": shop.ship_async}
            before, after = block("await queue.consume").split("\n...\n")
            await run_async(before, space)
            await asyncio.to_thread(wait_for, lambda: shop.shipped, what="the handler to run")
            await run_async(after, space)
            assert isinstance(space["retries"], AioRetries)

    asyncio.run(asyncio.wait_for(consume(), 60))
    assert (shop.shipped, installation.depth(QUEUE)) == ([b"good"], 0)


async def run_async(text: str, space: dict[str, Any]) -> None:
    """A block with `await` outside of a function."""
    code = compile(text, "clients.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    done = types.FunctionType(code, space)()
    if done is not None:
        await done


def test_docs_clients_options_classify_redact_and_cut(installation: ClientInstallation) -> None:
    def look_at_its_code(_: Exception) -> Verdict:
        return Verdict("final")

    with open_connection(installation.amqp_url) as connection:
        space: dict[str, Any] = {
            "Options": Options,
            "Classes": Classes,
            "Retries": Retries,
            "json": json,
            "re": re,
            "connection": connection,
            "ShopClosed": ShopClosedError,
            "DatabaseError": psycopg.DatabaseError,
            "look_at_its_code": look_at_its_code,
        }
        run("classes=Classes", space)
        shop = Shop()

        def handle(_channel: object, _method: object, _properties: object, body: bytes) -> None:
            shop.ship(body)

        connection.channel().basic_consume(QUEUE, space["retries"].handler(QUEUE)(handle))
        for problem, expected in (
            (ShopClosedError("card 4111111111111111"), ("rate_limited", "card …")),
            (psycopg.DatabaseError("x" * 600), ("final", "x" * 499 + "…")),
            (json.JSONDecodeError("no json", "", 0), ("final", "no json: line 1 column 1 (char 0)")),
        ):
            shop.problem = problem
            installation.publish(b"order", "m-1")
            found = request(installation, connection)
            assert (found["error_class"], found["error_reason"]) == expected


def test_docs_clients_option_names_the_owner(installation: ClientInstallation) -> None:
    space: dict[str, Any] = {"Options": Options}
    run("owner=lambda", space)
    with open_connection(installation.amqp_url) as connection:
        retries = Retries(connection, space["options"])

        @retries.handler(QUEUE)
        def handle(_channel: object, _method: object, _properties: object, _body: bytes) -> None:
            raise ValueError("no truck")

        connection.channel().basic_consume(QUEUE, handle)
        installation.publish(b"order", "m-1", headers={"tenant_id": "acme"})
        assert request(installation, connection)["owner"] == "acme"


def test_docs_clients_deduplicators_let_an_attempt_through_once(database: Database) -> None:
    charged: list[str] = []
    space: dict[str, Any] = {"attempt": Attempt(QUEUE, "m-1", content="c"), "charge": charged.append, "card": "visa"}
    run("MemoryDeduplicator()", space | {"MemoryDeduplicator": MemoryDeduplicator})
    made = MemoryDeduplicator()
    for _ in range(2):
        run("MemoryDeduplicator()", space | {"MemoryDeduplicator": lambda: made})
    assert charged == ["visa", "visa"], "once by each deduplicator"
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(TABLE)
        connection.execute("create table charges (what text)")
        for _ in range(2):
            run("deduplicator_postgres", space | {"connection": connection}, **{"…": "values ('done')"})
        assert connection.execute("select count(*) from charges").fetchone() == (1,)
