from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tarry.audit.maintenance import AuditFindings, maintain
from tarry.audit.status import Counts
from tarry.errors import AuditUnavailableError

FOUND = AuditFindings(Counts(0, 0, 0, 0, 0, 0, 0, 0, 0), 2, 1, 3.0, (), {}, {})


def test_a_pass_that_cannot_be_made_is_told_as_unknown_and_tried_again() -> None:
    async def run() -> list[AuditFindings | None]:
        stop = asyncio.Event()
        told: list[AuditFindings | None] = []
        passes: Iterator[AuditFindings | AuditUnavailableError] = iter([AuditUnavailableError("away"), FOUND])

        async def keeper() -> AuditFindings:
            found = next(passes)
            if isinstance(found, AuditUnavailableError):
                raise found
            return found

        def tell(found: AuditFindings | None) -> None:
            told.append(found)
            if found is not None:
                stop.set()

        await asyncio.wait_for(maintain(keeper, tell, stop, every=0.01), 5)
        return told

    assert asyncio.run(run()) == [None, FOUND]
