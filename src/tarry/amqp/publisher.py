"""Publishes batches with mandatory flag and publisher confirms, and reports the broker's outcome for each message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tarry.amqp.connection import AmqpConnection
from tarry.amqp.field_tables import BadTableError, pick
from tarry.amqp.frames import publish_frames
from tarry.amqp.properties import Properties
from tarry.amqp.url import Address
from tarry.core.names import ID_HEADER, ROUND_HEADER

_ID, _ROUND = ID_HEADER.encode(), ROUND_HEADER.encode()


class PublishOutcome(Enum):
    """The broker's answer to one published message."""

    CONFIRMED = "confirmed"
    RETURNED = "returned"
    """It was routed to no queue: a tier is not declared."""
    NACKED = "nacked"
    """A queue refused it because it is full or has lost its quorum."""
    UNKNOWN = "unknown"
    """The connection closed before an answer: the message may or may not be in the queue."""


@dataclass(slots=True)
class Message:
    """A message to publish."""

    exchange: str
    routing_key: str
    properties: Properties
    body: bytes
    token: str
    """`retry id:round`. The message headers contain both too, so that a returned message can be recognised."""
    _encoded: bytes | None = field(default=None, init=False, repr=False, compare=False)

    def encoded_properties(self) -> bytes:
        """The properties as sent to the broker and stored in the audit; encoded once."""
        if self._encoded is None:
            self._encoded = b"".join(self.properties.encode())
        return self._encoded


class _Batch:
    """Messages that were published together, and their outcomes."""

    __slots__ = ("done", "left", "messages", "outcomes", "returned")

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.outcomes = [PublishOutcome.UNKNOWN] * len(messages)
        self.left = len(messages)
        self.returned: set[int] = set()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, place: int, outcome: PublishOutcome) -> None:
        self.outcomes[place] = PublishOutcome.RETURNED if place in self.returned else outcome
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(None)


class Publisher:
    """A connection in confirm mode."""

    def __init__(self, link: AmqpConnection) -> None:
        self.link = link
        self._tag = 0
        self._settled = 0
        """Every tag up to and including this one has been answered."""
        self._pending: dict[int, tuple[_Batch, int]] = {}

    @classmethod
    async def open(cls, address: Address, purpose: str) -> Publisher:
        link = await AmqpConnection.open(address, purpose)
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

    async def publish(self, messages: Sequence[Message]) -> list[PublishOutcome]:
        """Publish all, then wait for all answers; UNKNOWN for messages without an answer when the connection closes."""
        if not messages or not self.link.is_open:
            return [PublishOutcome.UNKNOWN] * len(messages)
        # Encode all before sending the first: a message that cannot be encoded must not leave the batch half published.
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
        outcome = PublishOutcome.CONFIRMED if taken else PublishOutcome.NACKED
        if not multiple:
            self._settle(tag, outcome)
            return
        for one in range(self._settled + 1, tag + 1):
            self._settle(one, outcome)
        self._settled = max(self._settled, tag)

    def _settle(self, tag: int, outcome: PublishOutcome) -> None:
        found = self._pending.pop(tag, None)
        if found is not None:
            batch, place = found
            batch.settle(place, outcome)

    def _on_return(self, _channel: object, method: Any, properties: Any, body: bytes) -> None:
        """Mark the returned message; the broker sends a return before the ack of the same message.

        A message without a token is matched by exchange and body, which may mark more messages than were returned.
        """
        token = _token(properties)
        for batch, place in self._pending.values():
            message = batch.messages[place]
            same = message.token == token if token else (message.exchange, message.body) == (method.exchange, body)
            if same:
                batch.returned.add(place)

    def _on_closed(self, _: object) -> None:
        pending, self._pending = self._pending, {}
        for batch, place in pending.values():
            batch.settle(place, PublishOutcome.UNKNOWN)


def _token(properties: Properties) -> str | None:
    """The token from the message headers; None if they had no room for tarry's headers."""
    try:
        found = pick(properties.headers or b"", {_ID, _ROUND})
    except BadTableError:
        return None
    if _ID not in found or _ROUND not in found:
        return None
    return f"{found[_ID].text()}:{found[_ROUND].integer()}"
