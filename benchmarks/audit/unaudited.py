"""The service without its books: every claim is granted, nothing is written. For measuring what the books cost.

python -m benchmarks.audit.unaudited, with the settings of the service in the environment
"""

from __future__ import annotations

from collections.abc import Sequence

from tarry.audit.records import Claim, Claimed, Granted, Record, Return
from tarry.audit.store import Store
from tarry.cli import serve
from tarry.core.states import Note
from tarry.settings import load_settings


class NoBooks(Store):
    """Says yes, and forgets."""

    async def open(self) -> None:
        """Nothing to open."""

    async def claim(self, claims: Sequence[Claim]) -> Claimed:
        granted = {one.retry_id: Granted(one.retry_id, one.round, one.retry_count, one.since_ms) for one in claims}
        return Claimed(granted, {})

    async def record(self, records: Sequence[Record]) -> None:
        """Not written."""

    async def note(self, notes: Sequence[tuple[str, int]], note: Note, reason: str) -> None:
        """Not written."""

    async def returned(self, returns: Sequence[Return]) -> None:
        """Not written."""

    async def ping(self) -> None:
        """Always there."""


if __name__ == "__main__":
    setattr(serve, "Store", NoBooks)  # noqa: B010 - the one thing that differs, and no export of that module
    serve.serve(load_settings())
