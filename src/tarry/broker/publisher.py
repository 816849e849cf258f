"""Publishing in batches, mandatory and confirmed: each message ends with the broker's own word on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pika import spec
from pika.exceptions import AMQPError

from tarry.broker.address import Address
from tarry.broker.link import Link
from tarry.contract import headers as h
from tarry.contract.fields import pick
from tarry.contract.properties import Properties


class Outcome(Enum):
    """What the broker said of one message."""

    CONFIRMED = "confirmed"
    RETURNED = "returned"
    """No queue took it: a tier is not declared."""
    NACKED = "nacked"
    """A queue refused it: full, or without its quorum."""
    UNKNOWN = "unknown"
    """The connection ended before an answer: it may or may not be there."""


@dataclass(frozen=True, slots=True)
class Message:
    """What is to be published."""

    exchange: str
    routing_key: str
    properties: Properties
    body: bytes
    token: str
    """`retry id:round`, which the message's own headers hold too: a returned message is recognised by it."""


class _Batch:
    """Outcomes of messages that were published together."""

    def __init__(self, size: int) -> None:
        self.outcomes = [Outcome.UNKNOWN] * size
        self.left = size
        self.done = asyncio.Event()

    def settle(self, place: int, outcome: Outcome) -> None:
        self.outcomes[place] = outcome
        self.left -= 1
        if not self.left:
            self.done.set()


class Publisher:
    """A link in confirm mode."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._tag = 0
        self._pending: dict[int, tuple[_Batch, int, str]] = {}
        self._returned: set[str] = set()

    @classmethod
    async def open(cls, address: Address, purpose: str) -> Publisher:
        link = await Link.open(address, purpose)
        publisher = cls(link)
        link.channel.confirm_delivery(publisher._on_confirm)
        link.channel.add_on_return_callback(publisher._on_return)
        link.closes_with_channel()
        link.closed.add_done_callback(publisher._on_closed)
        return publisher

    async def publish(self, messages: Sequence[Message]) -> list[Outcome]:
        """Publish all, then wait for the last answer; UNKNOWN for those that the connection did not survive."""
        batch = _Batch(len(messages))
        for place, message in enumerate(messages):
            if not self._send(message):
                batch.settle(place, Outcome.UNKNOWN)
            else:
                self._pending[self._tag] = (batch, place, message.token)
        if batch.left:
            await batch.done.wait()
        return batch.outcomes

    def _send(self, message: Message) -> bool:
        if not self.link.is_open:
            return False
        try:
            self.link.channel.basic_publish(
                message.exchange,
                message.routing_key,
                message.body,
                message.properties,  # type: ignore[arg-type] # stands in for pika's own, see contract.properties
                mandatory=True,
            )
        except AMQPError:
            return False
        self._tag += 1
        return True

    def _on_confirm(self, answer: Any) -> None:
        method = answer.method
        outcome = Outcome.CONFIRMED if isinstance(method, spec.Basic.Ack) else Outcome.NACKED
        if not method.multiple:
            self._settle(method.delivery_tag, outcome)
            return
        for tag in [tag for tag in self._pending if tag <= method.delivery_tag]:
            self._settle(tag, outcome)

    def _settle(self, tag: int, outcome: Outcome) -> None:
        batch, place, token = self._pending.pop(tag)
        if self._returned and token in self._returned:
            self._returned.discard(token)
            outcome = Outcome.RETURNED
        batch.settle(place, outcome)

    def _on_return(self, _channel: object, _method: object, properties: Any, _body: bytes) -> None:
        """The broker sends a return before the ack of the same message."""
        found = pick(properties.headers or b"", {h.ID.encode(), h.ROUND.encode()})
        retry_id, round_ = found.get(h.ID.encode()), found.get(h.ROUND.encode())
        if retry_id is not None and round_ is not None:
            self._returned.add(f"{retry_id.text()}:{round_.integer()}")

    def _on_closed(self, _: object) -> None:
        pending, self._pending = self._pending, {}
        for batch, place, _token in pending.values():
            batch.settle(place, Outcome.UNKNOWN)
