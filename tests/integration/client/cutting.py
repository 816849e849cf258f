"""A proxy that reads along and cuts at a chosen step of a failure: that frame is the first one not to pass."""

from __future__ import annotations

import random
import struct
from collections import Counter
from typing import TYPE_CHECKING

from tests.support.proxy import CHUNK, Link, Pipe, Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

METHOD, END = 1, 1
HEAD = struct.Struct(">BHI")
GREETING = b"AMQP"
PUBLISH, ACK = b"\x00\x3c\x00\x28", b"\x00\x3c\x00\x50"
STEPS = {"publish": ("client", PUBLISH), "confirm": ("server", ACK), "ack": ("client", ACK)}
"""Before it was published; published and not confirmed; confirmed and not acknowledged."""


class CuttingProxy(Proxy):
    """Cuts so many times, at steps drawn at random, with a few undisturbed ones in between."""

    def __init__(self, target: tuple[str, int], cuts: int, seed: int = 7) -> None:
        super().__init__(target)
        self._left = cuts
        self._random = random.Random(seed)
        self.cuts: Counter[str] = Counter()
        self._draw()

    @property
    def is_done(self) -> bool:
        return not self._left

    def cuts_at(self, side: str, method: bytes) -> bool:
        """Whether this frame is the one. All links run in one loop, so nobody else is asked at the same time."""
        if not self._left or (side, method) != STEPS[self._step]:
            return False
        self._pass -= 1
        if self._pass >= 0:
            return False
        self.cuts[self._step] += 1
        self._left -= 1
        self._draw()
        return True

    def _draw(self) -> None:
        self._step = self._random.choice(list(STEPS))
        self._pass = self._random.randint(0, 4)


class CuttingLink(Link):
    proxy: CuttingProxy

    async def carry(self, source: Pipe, target: Pipe) -> None:
        side, waiting = ("client" if source is self.client else "server"), b""
        while chunk := await source.reader.read(CHUNK):
            waiting += chunk
            passing = b""
            for whole in frames(waiting):
                if self.proxy.cuts_at(side, whole[HEAD.size : HEAD.size + 4] if whole[0] == METHOD else b""):
                    target.writer.write(passing)
                    await target.writer.drain()
                    self.cut()
                    return
                passing += whole
            waiting = waiting[len(passing) :]
            target.writer.write(passing)
            await target.writer.drain()
        target.writer.write_eof()


def frames(data: bytes) -> Iterator[bytes]:
    """The whole frames that are there so far; the greeting counts as one."""
    position = 0
    while position + 8 <= len(data):
        if data.startswith(GREETING, position):
            end = position + 8
        else:
            end = position + HEAD.size + HEAD.unpack_from(data, position)[2] + END
        if end > len(data):
            return
        yield data[position:end]
        position = end


CuttingProxy.kind_of_link = CuttingLink
