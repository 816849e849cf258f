"""A real server on a loopback port: idle and half-sent connections are closed, and there are only so many of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tarry.web.app import listen, make_server
from tarry.web.connections import ConnectionLimits

SHORT = 0.4
LONG = 60.0
QUICK = b"GET /quick HTTP/1.1\r\nHost: x\r\n\r\n"
SLOW = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Site:
    """Answers at once, or when it is told to; never reads a body."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.go_on = asyncio.Event()
        self.under_way = asyncio.Semaphore(0)
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self, sent: bytes = b"") -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(sent)
        self._writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        self.go_on.set()
        for writer in self._writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


@asynccontextmanager
async def serving(limits: ConnectionLimits) -> AsyncIterator[Site]:
    listener = listen("127.0.0.1", 0)
    site = Site(listener.getsockname()[1])

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            site.under_way.release()
            await site.go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    server = make_server(app, limits)
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield site
    finally:
        await site.close()
        server.should_exit = server.force_exit = True
        await task


def story(limits: ConnectionLimits, tell: Callable[[Site], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), serving(limits) as site:
            await tell(site)

    asyncio.run(run())


async def drip(connection: Connection) -> bytes:
    """One byte now and then, until the other side has enough of it; what it said."""

    async def send() -> None:
        while True:
            connection[1].write(b"x")
            await asyncio.sleep(SHORT / 10)

    sending = asyncio.create_task(send())
    try:
        return await connection[0].read()
    except ConnectionResetError:
        return b""
    finally:
        sending.cancel()


def test_connections_that_send_nothing_are_closed() -> None:
    async def tell(site: Site) -> None:
        reader, _ = await site.open()
        assert await reader.read() == b""

    story(ConnectionLimits(request=SHORT, idle=LONG), tell)


def test_connections_that_stay_idle_after_an_answer_are_closed() -> None:
    async def tell(site: Site) -> None:
        reader, _ = await site.open(QUICK)
        assert (await reader.read()).endswith(b"\r\n\r\nok")

    story(ConnectionLimits(request=LONG, idle=SHORT), tell)


def test_connections_with_half_a_head_are_answered_408_and_closed() -> None:
    async def tell(site: Site) -> None:
        said = await drip(await site.open(b"GET /quick HTTP/1.1\r\nX-Drip: "))
        head, _, body = said.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert b"content-type: application/problem+json" in head
        assert json.loads(body)["status"] == 408

    story(ConnectionLimits(request=SHORT, idle=LONG), tell)


def test_connections_with_half_a_second_request_are_closed_too() -> None:
    async def tell(site: Site) -> None:
        said = await drip(await site.open(QUICK + b"GET /quick HTTP/1.1\r\nX-Drip: "))
        assert said.startswith(b"HTTP/1.1 200 OK")

    story(ConnectionLimits(request=SHORT, idle=LONG), tell)


def test_connections_with_half_a_body_are_closed() -> None:
    async def tell(site: Site) -> None:
        said = await drip(await site.open(b"POST /quick HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"))
        assert said.startswith(b"HTTP/1.1 200 OK"), "it was answered without its body"

    story(ConnectionLimits(request=SHORT, idle=LONG), tell)


def test_a_request_that_came_whole_may_take_as_long_as_it_takes() -> None:
    async def tell(site: Site) -> None:
        reader, _ = await site.open(SLOW)
        await site.under_way.acquire()
        await asyncio.sleep(SHORT * 3)
        site.go_on.set()
        assert (await reader.read(1000)).startswith(b"HTTP/1.1 200 OK")

    story(ConnectionLimits(request=SHORT, idle=SHORT), tell)


def test_the_connection_that_waits_longest_makes_room_for_a_new_one() -> None:
    async def tell(site: Site) -> None:
        silent = [await site.open(b"GET /") for _ in range(4)]
        reader, _ = await site.open(QUICK)
        assert (await reader.read(1000)).startswith(b"HTTP/1.1 200 OK")
        assert await silent[0][0].read() == b""
        for other, _ in silent[1:]:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(other.read(), 0.05)

    story(ConnectionLimits(request=LONG, idle=LONG, connections=4), tell)


def test_a_connection_too_many_is_answered_503_if_all_are_at_work() -> None:
    async def tell(site: Site) -> None:
        working = [await site.open(SLOW) for _ in range(3)]
        for _ in working:
            await site.under_way.acquire()
        reader, _ = await site.open(QUICK)
        said = await reader.read()
        assert said.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"retry-after: 1\r\n" in said
        site.go_on.set()
        for one, _ in working:
            assert (await one.read(1000)).startswith(b"HTTP/1.1 200 OK")

    story(ConnectionLimits(request=LONG, idle=LONG, connections=3), tell)
