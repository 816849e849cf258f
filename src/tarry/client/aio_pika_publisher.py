"""Publishes through aio-pika: sends the bytes made by the shared core and waits for a reliable confirm."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from weakref import WeakValueDictionary

from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.exceptions import CONNECTION_EXCEPTIONS, DeliveryError
from aiormq import spec

from tarry.amqp.properties import Properties
from tarry.client.outcomes import PROPERTIES
from tarry.core.names import Names
from tarry.errors import BrokerError

CONFIRM_SECONDS = 30.0
"""How long to wait for the broker's confirm; after that the message counts as not accepted."""


class NotTakenError(BrokerError):
    """The broker did not confirm a message, or returned it."""


class ConfirmedPublisher:
    """Opens its channels when they are first needed, and reopens them after they were closed."""

    def __init__(self, connection: AbstractConnection, names: Names) -> None:
        self._connection = connection
        self._names = names
        self._requests: AbstractChannel | None = None
        self._reports: AbstractChannel | None = None
        self._opening = asyncio.Lock()
        self._by_id: WeakValueDictionary[bytes | None, asyncio.Lock] = WeakValueDictionary()

    async def request(self, body: bytes, properties: Properties) -> None:
        """Returns once the broker has accepted the message; raises NotTakenError in every other case.

        aiormq identifies a returned message by its message id. If two messages with the same id were in flight, it
        would report one of them as accepted, so they are published one after the other.
        """
        one_at_a_time = self._by_id.setdefault(properties.message_id, asyncio.Lock())
        async with one_at_a_time:
            await self._publish(self._names.intake, body, properties, confirmed=True)

    async def report(self, body: bytes) -> None:
        """Returns once the report is written to the connection; it is not confirmed."""
        await self._publish(self._names.reports, body, PROPERTIES, confirmed=False)

    async def close(self) -> None:
        for channel in (self._requests, self._reports):
            if channel is not None and not channel.is_closed:
                await channel.close()

    async def _publish(self, exchange: str, body: bytes, properties: Properties, *, confirmed: bool) -> None:
        try:
            async with asyncio.timeout(CONFIRM_SECONDS):
                channel = await (await self._channel(confirmed=confirmed)).get_underlay_channel()
                await channel.basic_publish(body, exchange=exchange, properties=_AsIs(properties), mandatory=confirmed)
        except TimeoutError as error:
            raise NotTakenError(f"no answer from the broker for {CONFIRM_SECONDS:g} seconds") from error
        except CONNECTION_EXCEPTIONS as error:
            if isinstance(error, DeliveryError):
                await self._renew()
            raise NotTakenError(repr(error)) from error

    async def _renew(self) -> None:
        """Replaces the channel: on old brokers, once a full queue has refused a publish, the channel keeps refusing."""
        refused, self._requests = self._requests, None
        if refused is not None and not refused.is_closed:
            await refused.close()

    async def _channel(self, *, confirmed: bool) -> AbstractChannel:
        async with self._opening:
            found = self._requests if confirmed else self._reports
            if found is None or found.is_closed:
                found = await self._connection.channel(publisher_confirms=confirmed, on_return_raises=confirmed)
            if confirmed:
                self._requests = found
            else:
                self._reports = found
        return found


class _AsIs(spec.Basic.Properties):
    """Properties that are encoded already. aiormq reads the message id, and assigns one where it is missing."""

    def __init__(self, properties: Properties) -> None:
        raw = properties.message_id
        super().__init__(message_id=raw.decode() if raw else None)
        self._properties = properties

    def marshal(self) -> bytes:
        message_id = (self.message_id or "").encode()
        return b"".join(replace(self._properties, message_id=message_id or None).encode())
