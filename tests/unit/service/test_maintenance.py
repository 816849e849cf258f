from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from structlog.testing import capture_logs

from tarry.attach.listing import Attachment, AttachmentState
from tarry.audit.maintenance import MOST_NAMED, AuditFindings, Stall, maintain
from tarry.audit.status import Counts
from tarry.core.names import Destination
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


def test_an_audit_pass_logs_a_few_queues_and_the_number_of_the_others() -> None:
    stalled = tuple(Stall(f"retry.relay.q{number}", 1, ()) for number in range(10_000))
    attached = tuple(
        Attachment(Destination("queue", f"q{number}"), AttachmentState.POLICY_GONE) for number in range(10_000)
    )

    async def run() -> None:
        stop = asyncio.Event()

        async def keeper() -> AuditFindings:
            stop.set()
            return replace(FOUND, stalled=stalled, attachments=attached)

        await asyncio.wait_for(maintain(keeper, lambda _: None, stop, every=0.01), 5)

    with capture_logs() as logged:
        asyncio.run(run())
    events = Counter(line["event"] for line in logged)
    assert events["queue stalled"] == events["attachment is not in effect"] == MOST_NAMED
    rest = {line["event"]: line["number"] for line in logged if line["event"].startswith("more ")}
    assert rest == {"more queues stalled": 9_980, "more attachments are not in effect": 9_980}
