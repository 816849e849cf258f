"""Publishing by way of aio-pika: the bytes of the shared core, and an answer that can be believed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from weakref import WeakValueDictionary

from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.exceptions import CONNECTION_EXCEPTIONS, DeliveryError
from aiormq import spec

from tarry.client.outcomes import PROPERTIES
from tarry.contract.properties import Properties
from tarry.core.names import Names
from tarry.errors import BrokerError

CONFIRM_SECONDS = 30.0
"""For so long the broker is waited for; past it the message counts as not taken."""


class NotTakenError(BrokerError):
    """The broker did not confirm a message, or sent it back."""


class Publisher:
    """Opens its channels when they are first needed, and again when they have gone."""

    def __init__(self, connection: AbstractConnection, names: Names) -> None:
        self._connection = connection
        self._names = names
        self._requests: AbstractChannel | None = None
        self._reports: AbstractChannel | None = None
        self._opening = asyncio.Lock()
        self._by_id: WeakValueDictionary[bytes | None, asyncio.Lock] = WeakValueDictionary()

    async def request(self, body: bytes, properties: Properties) -> None:
        """Returns once the broker has taken it; raises NotTakenError in any other case.

        aiormq tells by the message id which message was returned. Of two with one id, both on their way, it would call
        one of them taken: so they go one after the other.
        """
        one_at_a_time = self._by_id.setdefault(properties.message_id, asyncio.Lock())
        async with one_at_a_time:
            await self._publish(self._names.intake, body, properties, confirmed=True)

    async def report(self, body: bytes) -> None:
        """Returns once it is written."""
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
            raise NotTakenError(f"no word from the broker for {CONFIRM_SECONDS:g} seconds") from error
        except CONNECTION_EXCEPTIONS as error:
            if isinstance(error, DeliveryError):
                await self._renew()
            raise NotTakenError(repr(error)) from error

    async def _renew(self) -> None:
        """Old brokers go on refusing on a channel on which a full queue has refused once."""
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
    """Properties whose bytes are made already. aiormq asks for the message id, and gives one to what has none."""

    def __init__(self, properties: Properties) -> None:
        raw = properties.message_id
        super().__init__(message_id=raw.decode() if raw else None)
        self._properties = properties

    def marshal(self) -> bytes:
        message_id = (self.message_id or "").encode()
        return b"".join(replace(self._properties, message_id=message_id or None).encode())
