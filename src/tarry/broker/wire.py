"""A pika connection that leaves users' headers as they are.

pika decodes a header table on arrival, which damages some values and fails on others. Here a content header frame is
turned into our own `Properties`, whose table stays bytes; every other frame is pika's business.
"""

from __future__ import annotations

import struct
from typing import Any

from pika import frame, spec
from pika.adapters.asyncio_connection import AsyncioConnection

from tarry.contract.properties import Properties

_HEAD = struct.Struct(">BHL")
_CONTENT = struct.Struct(">HHQ")


class RawConnection(AsyncioConnection):
    """pika's asyncio connection, with raw properties on received messages."""

    _frame_buffer: bytes

    def _read_frame(self) -> tuple[int, Any]:
        data = self._frame_buffer
        if len(data) < _HEAD.size or data[0] != spec.FRAME_HEADER:
            return frame.decode_frame(data)
        _, channel, size = _HEAD.unpack_from(data)
        end = _HEAD.size + size
        if len(data) <= end:
            return 0, None
        _, _, body_size = _CONTENT.unpack_from(data, _HEAD.size)
        properties = Properties.decode(data[:end], _HEAD.size + _CONTENT.size)
        return end + 1, frame.Header(channel, body_size, properties)  # type: ignore[arg-type]
