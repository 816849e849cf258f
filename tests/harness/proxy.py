"""A TCP proxy on a free loopback port that breaks the wire for real: slow, cut, refused, or silent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING, Self

from tarry.embedded import ports

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

# Closing with this set sends RST and no FIN, as a crashed peer or a firewall does.
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
CHUNK = 1 << 16


class Link:
    """One client's connection and the one made for it."""

    def __init__(self, proxy: Proxy, client: Pipe) -> None:
        self.proxy = proxy
        self.client = client
        self.server: Pipe | None = None
        self.lost_bytes = False

    async def run(self) -> None:
        try:
            if self.proxy.silent:
                await self.swallow(self.client.reader)
                return
            self.server = Pipe(*await asyncio.open_connection(*self.proxy.target))
            await asyncio.gather(self.carry(self.client, self.server), self.carry(self.server, self.client))
        except OSError:
            pass  # either side reset the connection, as does the end of this function to the other
        finally:
            self.cut()

    async def carry(self, source: Pipe, target: Pipe) -> None:
        """Each chunk waits for its own moment, so that a delay is latency and not a limit on throughput."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivering = asyncio.create_task(self.deliver(waiting, target))
        try:
            clock = asyncio.get_running_loop().time
            while chunk := await source.reader.read(CHUNK):
                if self.proxy.silent:
                    self.lost_bytes = True
                else:
                    waiting.put_nowait((clock() + self.proxy.latency, chunk))
            if not self.proxy.silent:
                waiting.put_nowait((clock() + self.proxy.latency, b""))
                await delivering
        finally:
            delivering.cancel()

    async def deliver(self, waiting: asyncio.Queue[tuple[float, bytes]], target: Pipe) -> None:
        while True:
            due, chunk = await waiting.get()
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            if not chunk:
                target.writer.write_eof()
                return
            target.writer.write(chunk)
            await target.writer.drain()

    async def swallow(self, reader: asyncio.StreamReader) -> None:
        self.lost_bytes = True
        while await reader.read(CHUNK):
            pass

    def cut(self) -> None:
        for pipe in filter(None, (self.client, self.server)):
            pipe.reset()


class Pipe:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def reset(self) -> None:
        if not self.writer.transport.is_closing():
            self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            self.writer.transport.abort()


class Proxy:
    """Use as a context manager. Every method has taken effect when it returns."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.port = ports.free(1)[0]
        self.latency = 0.0
        self.silent = False
        self._links: dict[Link, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{self.port}")

    def delay(self, seconds: float) -> None:
        """Hold everything that passes, in either direction, for that long."""
        self.latency = seconds

    def cut(self) -> None:
        """Reset every connection there is; new ones are welcome."""
        self._do(self._cut_all)

    def refuse(self) -> None:
        """Refuse new connections; those that are there stay."""
        self._call(self._stop_listening())

    def blackhole(self) -> None:
        """Accept and swallow: nothing passes, nothing is answered, nothing is closed."""
        self._do(lambda: setattr(self, "silent", True))

    def heal(self) -> None:
        """All as new. A connection that lost bytes to the black hole is reset: it could not be whole again."""
        self.latency = 0.0
        self._do(self._leave_blackhole)
        self._call(self._listen())

    @property
    def connections(self) -> int:
        return len(self._links)

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, job: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(job, self._loop).result(timeout=10)

    def _do(self, job: Callable[[], None]) -> None:
        async def run() -> None:
            job()

        self._call(run())

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()  # not wait_closed(): from 3.12 on that waits for the connections too
            self._server = None
            await asyncio.sleep(0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(self, Pipe(reader, writer))
        task = asyncio.ensure_future(link.run())
        self._links[link] = task
        with contextlib.suppress(asyncio.CancelledError):
            await task
        self._links.pop(link, None)

    def _cut_all(self) -> None:
        for link in list(self._links):
            link.cut()

    def _leave_blackhole(self) -> None:
        self.silent = False
        for link in list(self._links):
            if link.lost_bytes:
                link.cut()

    async def _close(self) -> None:
        await self._stop_listening()
        self._cut_all()
        tasks = list(self._links.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # lets the aborted transports say goodbye to the loop
