"""A TCP proxy on a free loopback port that can delay, cut, refuse or silence connections."""

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
    """A client's connection and the one to the target."""

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

    async def end(self) -> None:
        """A transport closes its socket a little later than it is told to, and not at all once its loop has ended."""
        self.cut()
        for pipe in filter(None, (self.client, self.server)):
            with contextlib.suppress(OSError):
                await pipe.writer.wait_closed()

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

    kind_of_link = Link

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.port = ports.free(1)[0]
        self.latency = 0.0
        self.silent = False
        self._closing = False
        self._serving: set[asyncio.Task[None]] = set()
        self._links: dict[Link, asyncio.Task[None]] = {}
        self._listener: socket.socket | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{self.port}")

    def delay(self, seconds: float) -> None:
        """Delays everything that passes, in either direction, by that long."""
        self.latency = seconds

    def cut(self) -> None:
        """Resets every open connection; new ones are accepted."""
        self._do(self._cut_all)

    def refuse(self) -> None:
        """Refuses new connections; open ones stay."""
        self._call(self._stop_listening())

    def blackhole(self) -> None:
        """Accepts connections and drops all bytes: nothing passes and nothing is closed."""
        self._do(lambda: setattr(self, "silent", True))

    def heal(self) -> None:
        """Back to normal. A connection that lost bytes is reset, because its stream is broken."""
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
        asyncio.run_coroutine_threadsafe(job, self._loop).result(timeout=60)

    def _do(self, job: Callable[[], None]) -> None:
        async def run() -> None:
            job()

        self._call(run())

    async def _listen(self) -> None:
        """Not by asyncio's own server: when that is closed, what it is about to accept is neither served nor closed."""
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
            self._listener.setblocking(False)
            self._loop.add_reader(self._listener, self._on_client, self._listener)

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _on_client(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            client, _ = listener.accept()
            client.setblocking(False)
            serving = self._loop.create_task(self._serve(client))
            self._serving.add(serving)
            serving.add_done_callback(self._serving.discard)

    async def _serve(self, client: socket.socket) -> None:
        link = self.kind_of_link(self, Pipe(*await asyncio.open_connection(sock=client)))
        if not self._closing:
            self._links[link] = asyncio.ensure_future(link.run())
            with contextlib.suppress(asyncio.CancelledError):
                await self._links[link]
        await link.end()
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
        """Returns when every socket is closed: what the loop still held when it ends would never be."""
        self._closing = True
        await self._stop_listening()
        for task in self._links.values():
            task.cancel()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
