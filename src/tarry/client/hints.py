"""Reads from an HTTP response when to retry. Works with several HTTP libraries and imports none of them.

httpx and requests attach the response to their exceptions; aiohttp's exception has the status and headers itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, NamedTuple

from tarry.client.exceptions import RateLimited, wait_ms

_BUSY = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


class Busy(NamedTuple):
    """A 429 or 503 response, with the wait that the server asked for, if any."""

    status: int
    retry_after_ms: int | None


def busy(error_or_response: Any, now_ms: int) -> Busy | None:
    """None if it is neither 429 nor 503."""
    response = _attribute(error_or_response, "response")
    response = error_or_response if response is None else response
    status = _attribute(response, "status_code")
    status = _attribute(response, "status") if status is None else status
    if not isinstance(status, int) or status not in _BUSY:
        return None
    headers = _attribute(response, "headers")
    return Busy(int(status), retry_after_ms(headers, now_ms) if isinstance(headers, Mapping) else None)


def retry_after_ms(headers: Mapping[str, str], now_ms: int) -> int | None:
    """`Retry-After` in either of its forms: seconds, or a date. An invalid value counts as absent."""
    value = next((text for name, text in headers.items() if name.lower() == "retry-after"), None)
    if value is None:
        return None
    try:
        return wait_ms(float(value), now_ms)
    except (TypeError, ValueError, OverflowError):
        pass
    try:
        return wait_ms(parsedate_to_datetime(str(value)), now_ms)
    except (TypeError, ValueError, OverflowError):
        return None


def check_response(response: Any, now_ms: int = 0) -> None:
    """Raises RateLimited for a response with 429 or 503. `now_ms` matters for a date only; 0 means the current time."""
    found = busy(response, now_ms or _clock_ms())
    if found is not None:
        after = None if found.retry_after_ms is None else found.retry_after_ms / 1_000
        raise RateLimited(f"HTTP status {found.status}", retry_after=after)


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _attribute(thing: Any, name: str) -> Any:
    """In some libraries, reading an attribute that has no value raises."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - a property of another library
        return None
