"""The service without its store: every claim is granted, nothing is written. For measuring what the audit costs.

python -m benchmarks.audit.unaudited, with the settings of the service in the environment
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from tarry.cli import serve
from tarry.core.states import Note
from tarry.settings import load_settings
from tarry.store.claims import Store
from tarry.store.rows import Claim, Claimed, Granted, Record, RecordedReturn, Return


class NoStore(Store):
    """Grants every claim and stores nothing."""

    async def open(self) -> None:
        """Nothing to open."""

    async def claim(self, claims: Sequence[Claim]) -> Claimed:
        granted = {one.retry_id: Granted(one.retry_id, one.round, one.retry_count, one.since_ms) for one in claims}
        return Claimed(granted, {})

    async def record(self, records: Sequence[Record]) -> None:
        """Not written."""

    async def note(self, notes: Sequence[tuple[str, int]], note: Note, reason: str) -> None:
        """Not written."""

    async def returned(self, returns: Sequence[Return]) -> list[RecordedReturn]:
        """Not written, and counted as if it were."""
        return [RecordedReturn(one, comes_due=True, by_person=False) for one in returns]

    async def not_requeued(self, lately: timedelta) -> set[tuple[str, int]]:
        del lately
        return set()

    async def ping(self) -> None:
        """Always there."""


if __name__ == "__main__":
    setattr(serve, "Store", NoStore)  # noqa: B010 - the one thing that differs, and no export of that module
    serve.serve(load_settings())
