from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tarry.audit.status import Counts
from tarry.audit.upkeep import Findings
from tarry.errors import AuditUnavailableError
from tarry.router.maintenance import maintain

FOUND = Findings(Counts(0, 0, 0, 0, 0, 0, 0, 0), 2, 1, 3.0, (), {}, {})


def test_a_pass_that_cannot_be_made_is_told_as_unknown_and_tried_again() -> None:
    async def run() -> list[Findings | None]:
        stop = asyncio.Event()
        told: list[Findings | None] = []
        passes: Iterator[Findings | AuditUnavailableError] = iter([AuditUnavailableError("away"), FOUND])

        def keeper() -> Findings:
            found = next(passes)
            if isinstance(found, AuditUnavailableError):
                raise found
            return found

        def tell(found: Findings | None) -> None:
            told.append(found)
            if found is not None:
                stop.set()

        await asyncio.wait_for(maintain(keeper, tell, stop, every=0.01), 5)
        return told

    assert asyncio.run(run()) == [None, FOUND]
