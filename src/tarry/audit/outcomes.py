"""Consumers' outcome reports, on their way from the tap into the books."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog

from tarry.audit.arrays import Bigints, Integers, Uuids
from tarry.contract.outcome import BadReportError, Outcome, read_report
from tarry.contract.request import Delivery

log = structlog.get_logger()


def reported(deliveries: Sequence[Delivery]) -> list[tuple[Delivery, Outcome]]:
    """A report that cannot be read is passed over: it is evidence, and nobody's message is in it."""
    found: list[tuple[Delivery, Outcome]] = []
    for one in deliveries:
        try:
            found += [(one, outcome) for outcome in read_report(one.body)]
        except BadReportError as error:
            log.warning("not an outcome report", error=str(error))
    return found


def outcome_columns(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The parameters of the query, one array for each."""
    return {
        "ids": Uuids([one.retry_id for one in outcomes]),
        "rounds": Integers([one.round for one in outcomes]),
        "counts": Integers([one.retry_count for one in outcomes]),
        "at_ms": Bigints([one.at_ms for one in outcomes]),
        "durations_ms": Bigints([one.duration_ms for one in outcomes]),
    }
