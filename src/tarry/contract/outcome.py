"""Reads and writes outcome reports, in which consumers report that attempts at returned messages started or succeeded,
or that they have skipped a message of a check queue.

A report is one JSON message with many entries, published to the reports exchange. It is only evidence for the audit: if
a success is lost, it is presumed after a while unless its start was reported; without its report, a skipped message is
missing, and can be recovered. A report that arrives twice or late changes nothing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tarry.contract.header_reader import FAR_FUTURE_MS
from tarry.contract.identity import MOST_ROUNDS, is_canonical
from tarry.core.states import LONGEST_REASON, NOT_WANTED

CONTENT_TYPE = "application/vnd.tarry.outcomes+json"
MOST_OUTCOMES = 10_000
LONGEST_CONSUMER = 200
"""Most characters of a consumer's name that are kept."""
_STARTED, _SUCCEEDED, _SKIPPED = "started", "succeeded", "skipped"
_ONE = '{"id":"%s","round":%d,"outcome":"succeeded","retry_count":%d,"at_ms":%d,"duration_ms":%d}'
_START = '{"id":"%s","round":%d,"outcome":"started","at_ms":%d,"consumer":%s}'


@dataclass(frozen=True, slots=True)
class ReportedOutcome:
    """One message that succeeded after it was returned."""

    retry_id: str
    round: int
    retry_count: int
    """Retries used until it succeeded."""
    at_ms: int
    duration_ms: int
    """How long its handler took."""


@dataclass(frozen=True, slots=True)
class ReportedStart:
    """One attempt at a returned message that has started and has no outcome yet."""

    retry_id: str
    round: int
    at_ms: int
    consumer: str | None
    """Host and process, or the name that the consumer gives itself."""


@dataclass(frozen=True, slots=True)
class ReportedSkip:
    """One message of a check queue that is not wanted any more, and does not return."""

    retry_id: str
    round: int
    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """The entries of one report."""

    outcomes: list[ReportedOutcome]
    starts: list[ReportedStart]
    skips: list[ReportedSkip] = field(default_factory=list)


class BadReportError(ValueError):
    """A report that cannot be read; the audit ignores it."""


def report_of(
    rows: Iterable[tuple[Any, Any, Any, int, float]], starts: Iterable[tuple[str, int, int]] = (), consumer: str = ""
) -> bytes | None:
    """Write a report from rows that consumers collect; None if no row is valid.

    A row has the retry id, round and count from the headers, the time in nanoseconds, and the duration in seconds; a
    start has id, round and time. This runs for every retried success of a consumer, so the JSON is formatted by hand.
    Invalid rows are left out.
    """
    outcomes = [
        _ONE % (retry_id, round_, count if isinstance(count, int) else 0, at_ns // 1_000_000, seconds * 1_000)
        for retry_id, round_, count, at_ns, seconds in rows
        if isinstance(round_, int) and isinstance(retry_id, str) and is_canonical(retry_id)
    ]
    outcomes += [
        _START % (retry_id, round_, at_ns // 1_000_000, json.dumps(consumer))
        for retry_id, round_, at_ns in starts
        if is_canonical(retry_id)
    ]
    return f'{{"outcomes":[{",".join(outcomes)}]}}'.encode() if outcomes else None


def report_of_skips(skips: Iterable[ReportedSkip]) -> bytes:
    rows = [
        {"id": one.retry_id, "round": one.round, "outcome": _SKIPPED, "at_ms": one.at_ms, "reason": one.reason}
        for one in skips
    ]
    return json.dumps({"outcomes": rows}).encode()


def read_report(body: bytes) -> Report:
    """Parse a report. Outcomes of unknown kinds are ignored; anything else that is invalid raises BadReportError."""
    try:
        rows = json.loads(body)["outcomes"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadReportError('an outcome report is a JSON object with a list "outcomes"') from error
    if not isinstance(rows, list) or len(rows) > MOST_OUTCOMES:
        raise BadReportError(f'"outcomes" must be a list of at most {MOST_OUTCOMES} outcomes')
    kinds = [_SUCCEEDED if not isinstance(row, dict) else row.get("outcome", _SUCCEEDED) for row in rows]
    return Report(
        [_read_outcome(row) for row, kind in zip(rows, kinds, strict=True) if kind == _SUCCEEDED],
        [_read_start(row) for row, kind in zip(rows, kinds, strict=True) if kind == _STARTED],
        [_read_skip(row) for row, kind in zip(rows, kinds, strict=True) if kind == _SKIPPED],
    )


def _read_outcome(row: Any) -> ReportedOutcome:
    return ReportedOutcome(
        retry_id=_id(row),
        round=_number(row, "round", MOST_ROUNDS),
        retry_count=_number(row, "retry_count", MOST_ROUNDS),
        at_ms=_number(row, "at_ms", FAR_FUTURE_MS),
        duration_ms=_number(row, "duration_ms", FAR_FUTURE_MS),
    )


def _read_start(row: Any) -> ReportedStart:
    consumer = row.get("consumer")
    if consumer is not None and not isinstance(consumer, str):
        raise BadReportError("`consumer` of a start must be text")
    return ReportedStart(
        retry_id=_id(row),
        round=_number(row, "round", MOST_ROUNDS),
        at_ms=_number(row, "at_ms", FAR_FUTURE_MS),
        consumer=_storable(consumer, LONGEST_CONSUMER) if consumer else None,
    )


def _read_skip(row: Any) -> ReportedSkip:
    reason = row.get("reason", "")
    if not isinstance(reason, str):
        raise BadReportError("`reason` of a skip must be text")
    return ReportedSkip(
        retry_id=_id(row),
        round=_number(row, "round", MOST_ROUNDS),
        at_ms=_number(row, "at_ms", FAR_FUTURE_MS),
        reason=_storable(reason, LONGEST_REASON) or NOT_WANTED,
    )


def _storable(text: str, most: int) -> str:
    """Postgres text holds no NUL, and UTF-8 no lone surrogate."""
    return text[:most].replace("\x00", "\\x00").encode(errors="backslashreplace").decode()


def _id(row: Any) -> str:
    try:
        return str(uuid.UUID(row["id"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadReportError("an outcome must be a JSON object whose `id` is a UUID") from error


def _number(row: dict[str, Any], name: str, most: int) -> int:
    value = row.get(name, 0)
    if type(value) is not int or not 0 <= value <= most:
        raise BadReportError(f"`{name}` of an outcome must be a whole number from 0 to {most}")
    return value
