"""Blocking calls on the store, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from tarry.amqp.management import Management
from tarry.amqp.url import Address
from tarry.audit.verify import Auditor, AuditReading, AuditRules
from tarry.core.names import Names
from tarry.store.database import PostgresSession, SessionSettings, open_session
from tarry.store.rows import Balance

T = TypeVar("T")


def in_session(
    dsn: str,
    work: Callable[[PostgresSession], Coroutine[Any, Any, T]],
    settings: SessionSettings = SessionSettings.REPORT,
) -> T:
    """What the work returns, on a connection with these settings."""

    async def run() -> T:
        async with open_session(dsn, settings) as session:
            return await work(session)

    return asyncio.run(run())


def verified(
    dsn: str, address: Address, names: Names, *, rules: AuditRules | None = None
) -> tuple[AuditReading, Balance]:
    """The settled reading of an audit, and the balance; the grace is one second unless the rules say otherwise."""

    async def audit(session: PostgresSession) -> tuple[AuditReading, Balance]:
        chosen = rules or AuditRules(grace=timedelta(seconds=1))
        auditor = Auditor(session, Management(address), names, chosen)
        return await auditor.settled(), await auditor.balance()

    return in_session(dsn, audit)
