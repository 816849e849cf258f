"""How often a router reads the caps of owners, of which there may be a hundred thousand."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from tarry.core.budgets import Caps
from tarry.errors import AuditUnavailableError
from tarry.operations import budgets
from tarry.operations.context import OperatorContext


class Store:
    """Answers with these versions, one after the other, and then stops the reader."""

    def __init__(self, *versions: int | None) -> None:
        self.versions, self.reads, self.store = list(versions), 0, self
        self.stop = asyncio.Event()

    async def one(self, _name: str) -> tuple[int]:
        if len(self.versions) == 1:
            self.stop.set()
        version = self.versions.pop(0)
        if version is None:
            raise AuditUnavailableError("away")
        return (version,)

    async def rows(self, _name: str) -> list[tuple[Any, ...]]:
        self.reads += 1
        return [("acme", None, self.reads)]


def test_caps_are_read_again_only_when_they_have_changed() -> None:
    used: list[Caps] = []

    async def run() -> Store:
        store = Store(1, 1, 1, None, 1, 2, 2)
        await budgets.run(cast("OperatorContext", store), store.stop, used.append, every=0)
        return store

    assert asyncio.run(run()).reads == 2
    assert len(used) == 2
