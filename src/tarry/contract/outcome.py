"""Outcome reports: what consumers tell the audit of messages that came back and were dealt with.

A report is one JSON message for many outcomes, published to the reports exchange. It is evidence and nothing more: one
that is lost leaves a success to be presumed, and one that comes twice or late changes nothing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any

from tarry.contract.identity import MOST_ROUNDS, is_canonical
from tarry.contract.reading import FAR_FUTURE_MS

CONTENT_TYPE = "application/vnd.tarry.outcomes+json"
MOST_OUTCOMES = 10_000
_SUCCEEDED = "succeeded"
_ONE = '{"id":"%s","round":%d,"outcome":"succeeded","retry_count":%d,"at_ms":%d,"duration_ms":%d}'


@dataclass(frozen=True, slots=True)
class Outcome:
    """One message that succeeded after it came back."""

    retry_id: str
    round: int
    retry_count: int
    """Retries spent until it did."""
    at_ms: int
    duration_ms: int
    """How long its handler took."""


class BadReportError(ValueError):
    """A report that cannot be read; the audit passes over it."""


def report_of(rows: Iterable[tuple[Any, Any, Any, int, float]]) -> bytes | None:
    """From what consumers note: id, round and count as the headers had them, nanoseconds, and seconds of work.

    Every retried success of a consumer passes through here, so it is put together by hand. Rows that make no sense are
    left out.
    """
    told = [
        _ONE % (retry_id, round_, count if isinstance(count, int) else 0, at_ns // 1_000_000, seconds * 1_000)
        for retry_id, round_, count, at_ns, seconds in rows
        if isinstance(round_, int) and isinstance(retry_id, str) and is_canonical(retry_id)
    ]
    return _enclosed(told) if told else None


def write_report(outcomes: Iterable[Outcome]) -> bytes:
    return _enclosed(_ONE % astuple(one) for one in outcomes)


def _enclosed(told: Iterable[str]) -> bytes:
    return ('{"outcomes":[' + ",".join(told) + "]}").encode()


def read_report(body: bytes) -> list[Outcome]:
    """Outcomes of kinds that this version does not know are passed over; anything else that is odd is an error."""
    try:
        rows = json.loads(body)["outcomes"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadReportError('an outcome report is a JSON object with a list "outcomes"') from error
    if not isinstance(rows, list) or len(rows) > MOST_OUTCOMES:
        raise BadReportError(f'"outcomes" must be a list of at most {MOST_OUTCOMES} outcomes')
    return [_read(row) for row in rows if not isinstance(row, dict) or row.get("outcome", _SUCCEEDED) == _SUCCEEDED]


def _read(row: Any) -> Outcome:
    try:
        retry_id = str(uuid.UUID(row["id"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadReportError("an outcome must be a JSON object whose `id` is a UUID") from error
    return Outcome(
        retry_id=retry_id,
        round=_number(row, "round", MOST_ROUNDS),
        retry_count=_number(row, "retry_count", MOST_ROUNDS),
        at_ms=_number(row, "at_ms", FAR_FUTURE_MS),
        duration_ms=_number(row, "duration_ms", FAR_FUTURE_MS),
    )


def _number(row: dict[str, Any], name: str, most: int) -> int:
    value = row.get(name, 0)
    if type(value) is not int or not 0 <= value <= most:
        raise BadReportError(f"`{name}` of an outcome must be a whole number from 0 to {most}")
    return value
