"""The first message of a live queue, read without consuming it."""

from __future__ import annotations

import asyncio
from typing import Any

from pika import spec
from pika.exceptions import ChannelClosedByBroker

from tarry.broker.address import Address
from tarry.broker.declare import refusal
from tarry.broker.link import Link
from tarry.contract.message import Delivery


def peek(address: Address, queue: str) -> Delivery | None:
    """None if it is empty. The message is put back, marked as redelivered: no broker shows one otherwise."""
    return asyncio.run(_peek(address, queue))


async def _peek(address: Address, queue: str) -> Delivery | None:
    link = await Link.open(address, "explain: peek")
    found: list[Delivery] = []
    try:

        def ask(answered: Any) -> None:
            def take(_: object, method: Any, properties: Any, body: bytes) -> None:
                found.append(Delivery(body, properties, method.exchange, method.routing_key, method.redelivered))
                link.channel.basic_nack(method.delivery_tag, requeue=True)
                answered(None)

            link.channel.add_callback(answered, [spec.Basic.GetEmpty])
            link.channel.basic_get(queue, take)

        await link.answer(ask)
    except ChannelClosedByBroker as closed:
        raise refusal(address, closed.reply_code, closed.reply_text) from closed
    finally:
        await link.close()
    return found[0] if found else None
