"""Publishing in batches, mandatory and confirmed: each message ends with the broker's own word on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tarry.broker.address import Address
from tarry.broker.frames import publish_frames
from tarry.broker.link import Link
from tarry.contract import headers as h
from tarry.contract.fields import BadTableError, pick
from tarry.contract.properties import Properties

_ID, _ROUND = h.ID.encode(), h.ROUND.encode()


class Outcome(Enum):
    """What the broker said of one message."""

    CONFIRMED = "confirmed"
    RETURNED = "returned"
    """No queue took it: a tier is not declared."""
    NACKED = "nacked"
    """A queue refused it: full, or without its quorum."""
    UNKNOWN = "unknown"
    """The connection ended before an answer: it may or may not be there."""


@dataclass(slots=True)
class Message:
    """What is to be published."""

    exchange: str
    routing_key: str
    properties: Properties
    body: bytes
    token: str
    """`retry id:round`, which the message's own headers hold too: a returned message is recognised by it."""
    _encoded: bytes | None = field(default=None, init=False, repr=False, compare=False)

    def encoded_properties(self) -> bytes:
        """As they go over the wire, and into the audit; put together once."""
        if self._encoded is None:
            self._encoded = b"".join(self.properties.encode())
        return self._encoded


class _Batch:
    """Outcomes of messages that were published together."""

    __slots__ = ("done", "left", "messages", "outcomes", "returned")

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.outcomes = [Outcome.UNKNOWN] * len(messages)
        self.left = len(messages)
        self.returned: set[int] = set()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, place: int, outcome: Outcome) -> None:
        self.outcomes[place] = Outcome.RETURNED if place in self.returned else outcome
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(None)


class Publisher:
    """A link in confirm mode."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._tag = 0
        self._settled = 0
        """Every tag up to this one has its answer."""
        self._pending: dict[int, tuple[_Batch, int]] = {}

    @classmethod
    async def open(cls, address: Address, purpose: str) -> Publisher:
        link = await Link.open(address, purpose)
        publisher = cls(link)
        try:
            await link.answer(lambda done: link.channel.confirm_delivery(lambda _: None, done))
        except BaseException:
            await link.close()
            raise
        link.connection.on_confirm = publisher._on_confirm
        link.channel.add_on_return_callback(publisher._on_return)
        link.closes_with_channel()
        link.closed.add_done_callback(publisher._on_closed)
        return publisher

    async def publish(self, messages: Sequence[Message]) -> list[Outcome]:
        """Publish all, then wait for the last answer; UNKNOWN for those that the connection did not survive."""
        if not messages or not self.link.is_open:
            return [Outcome.UNKNOWN] * len(messages)
        # All are put into bytes before the first is sent: one that cannot be must not leave others half done.
        frames = [self._encode(message) for message in messages]
        batch = _Batch(messages)
        if not self._pending:
            self._settled = self._tag
        for place in range(len(messages)):
            self._tag += 1
            self._pending[self._tag] = (batch, place)
        self.link.connection.write(frames)
        await batch.done
        return batch.outcomes

    def _encode(self, message: Message) -> bytes:
        return publish_frames(
            self.link.channel.channel_number,
            message.exchange.encode(),
            message.routing_key.encode(),
            message.encoded_properties(),
            message.body,
            frame_max=self.link.frame_max,
        )

    def _on_confirm(self, tag: int, multiple: bool, taken: bool) -> None:  # noqa: FBT001 - as the connection calls it
        outcome = Outcome.CONFIRMED if taken else Outcome.NACKED
        if not multiple:
            self._settle(tag, outcome)
            return
        for one in range(self._settled + 1, tag + 1):
            self._settle(one, outcome)
        self._settled = max(self._settled, tag)

    def _settle(self, tag: int, outcome: Outcome) -> None:
        found = self._pending.pop(tag, None)
        if found is not None:
            batch, place = found
            batch.settle(place, outcome)

    def _on_return(self, _channel: object, method: Any, properties: Any, body: bytes) -> None:
        """The broker sends a return before the ack of the same message. In doubt more are marked than came back."""
        token = _token(properties)
        for batch, place in self._pending.values():
            message = batch.messages[place]
            same = message.token == token if token else (message.exchange, message.body) == (method.exchange, body)
            if same:
                batch.returned.add(place)

    def _on_closed(self, _: object) -> None:
        pending, self._pending = self._pending, {}
        for batch, place in pending.values():
            batch.settle(place, Outcome.UNKNOWN)


def _token(properties: Properties) -> str | None:
    """From the message's own headers; None where they had no room for ours."""
    try:
        found = pick(properties.headers or b"", {_ID, _ROUND})
    except BadTableError:
        return None
    if _ID not in found or _ROUND not in found:
        return None
    return f"{found[_ID].text()}:{found[_ROUND].integer()}"
