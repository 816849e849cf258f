"""`Delivery`: a message as received from the broker."""

from __future__ import annotations

from typing import NamedTuple

from tarry.amqp.properties import Properties


class Delivery(NamedTuple):
    """A message as received from the broker."""

    body: bytes
    properties: Properties
    exchange: str | bytes = ""
    routing_key: str | bytes = ""
    redelivered: bool = False
    tag: int = 0
