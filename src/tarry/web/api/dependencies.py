"""Dependencies of the routes: the operations of the caller, and the service of this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Generic, TypeVar

from fastapi import Depends, Request

from tarry.errors import TarryError
from tarry.operations.context import OperatorContext
from tarry.operations.local import LocalOperations
from tarry.operations.protocol import ActingOperations
from tarry.operations.scoped import ScopedOperations, whole_installation
from tarry.service.app import Service
from tarry.web.api.auth import Caller, Looker


async def get_context(request: Request) -> OperatorContext:
    context: OperatorContext = request.app.state.context
    return context


async def get_operations(caller: Looker, context: Annotated[OperatorContext, Depends(get_context)]) -> ActingOperations:
    return operations_of(caller, context)


def operations_of(caller: Caller, context: OperatorContext) -> ActingOperations:
    """What a caller may do, recorded under its name."""
    local = LocalOperations(context, caller.actor())
    return local if caller.scope is None else ScopedOperations(local, caller.name, caller.scope)


async def for_all_queues(caller: Looker) -> None:
    """For routes about the whole installation. Refuses a token that is limited to some queues."""
    if caller.scope is not None:
        raise whole_installation(caller.name, caller.scope)


async def get_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Context = Annotated[OperatorContext, Depends(get_context)]
Operations = Annotated[ActingOperations, Depends(get_operations)]
TheService = Annotated[Service, Depends(get_service)]


T = TypeVar("T")


class Shared(Generic[T]):
    """A value that is computed by one request at a time and reused for `fresh` seconds."""

    def __init__(self, make: Callable[[], Awaitable[T]], fresh: float) -> None:
        self._make = make
        self._fresh = fresh
        self._lock = asyncio.Lock()
        self._made: tuple[float, T] | None = None
        self._refreshing: asyncio.Task[None] | None = None

    async def get(self, stale: float = 0.0) -> T:
        """With `stale`, a value that is so many seconds too old is answered, and a new one is made meanwhile."""
        made = self._made
        if made is not None and 0 < time.monotonic() - made[0] - self._fresh <= stale:
            if self._refreshing is None or self._refreshing.done():
                self._refreshing = asyncio.create_task(self._refresh())
            return made[1]
        return await self._fresh_value()

    async def _fresh_value(self) -> T:
        async with self._lock:
            if self._made is None or time.monotonic() - self._made[0] > self._fresh:
                began = time.monotonic()
                self._made = (began, await self._make())
            return self._made[1]

    async def _refresh(self) -> None:
        """An error is left to the request after the value has become too old."""
        with suppress(TarryError):
            await self._fresh_value()
