"""Frames as a broker sends them, cut anywhere by the network: the same message must come out, whatever is in it."""

from __future__ import annotations

from random import Random
from zlib import crc32

from pika import spec

from tarry.amqp.connection import RawConnection
from tarry.amqp.delivery import Delivery
from tarry.amqp.frames import CONTENT, END, HEAD, METHOD
from tarry.amqp.properties import Properties
from tests.hostile.fuzz.case import Case

FRAME = 4_096
TAG = 7
ONE_IN = 4
"""Cases whose frames are looked at: there is less to find."""


def check_frames(case: Case) -> None:
    """One sound delivery, one whose properties are damaged, and another sound one behind it."""
    mark = crc32(case.body, crc32(case.headers))
    if mark % ONE_IN:
        return
    random = Random(mark)
    sound = b"".join(case.properties.encode())
    damaged = _damaged(random, sound)
    stream = b"".join(_frames(case, raw) for raw in (sound, damaged, sound))
    first, broken, last = _received(random, stream)
    for one in (first, last):
        assert one == Delivery(case.body, case.properties, case.exchange, case.key, redelivered=False, tag=TAG)
    assert broken.body == case.body
    assert isinstance(broken.properties, Properties)


def _damaged(random: Random, raw: bytes) -> bytes:
    place = random.randrange(min(len(raw), 8))
    return random.choice([raw[:place], raw[:place] + random.randbytes(3) + raw[place + 3 :]])


def _frames(case: Case, properties: bytes) -> bytes:
    names = b"".join(bytes((len(one.encode()),)) + one.encode() for one in (case.exchange, case.key))
    method = METHOD.pack(spec.Basic.Deliver.INDEX) + b"\x03tag" + TAG.to_bytes(8, "big") + b"\x00" + names
    pieces = [_frame(spec.FRAME_METHOD, method)]
    pieces.append(_frame(spec.FRAME_HEADER, CONTENT.pack(Properties.INDEX, 0, len(case.body)) + properties))
    pieces += [_frame(spec.FRAME_BODY, case.body[at : at + FRAME]) for at in range(0, len(case.body), FRAME)]
    return b"".join(pieces)


def _frame(kind: int, payload: bytes) -> bytes:
    return HEAD.pack(kind, 1, len(payload)) + payload + END


def _received(random: Random, stream: bytes) -> list[Delivery]:
    connection = RawConnection.__new__(RawConnection)  # the part that reads; there is nobody to connect to
    connection._frame_buffer, connection.bytes_received = b"", 0
    found: list[Delivery] = []
    connection.on_delivery = found.append
    cuts = sorted(random.randrange(len(stream) + 1) for _ in range(random.randrange(3)))
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        if end > begin:
            connection._on_data_available(stream[begin:end])
    assert len(found) == 3, f"{len(found)} messages of 3 came out of the frames"
    return found
