"""What an HTTP answer says about coming again, whichever library it came by: none of them is imported here.

httpx and requests hang the response on their exceptions; aiohttp's exception has status and headers itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, NamedTuple

from tarry.client.signals import RateLimited, wait_ms

_BUSY = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


class Busy(NamedTuple):
    """A 429 or 503, and after how long the server wants to be asked again, if it said."""

    status: int
    retry_after_ms: int | None


def busy(error_or_response: Any, now_ms: int) -> Busy | None:
    """None where it is neither."""
    response = _attribute(error_or_response, "response")
    response = error_or_response if response is None else response
    status = _attribute(response, "status_code")
    status = _attribute(response, "status") if status is None else status
    if not isinstance(status, int) or status not in _BUSY:
        return None
    headers = _attribute(response, "headers")
    return Busy(int(status), retry_after_ms(headers, now_ms) if isinstance(headers, Mapping) else None)


def retry_after_ms(headers: Mapping[str, str], now_ms: int) -> int | None:
    """`Retry-After` in either of its forms: seconds, or a date. One that makes no sense counts as none."""
    said = next((value for name, value in headers.items() if name.lower() == "retry-after"), None)
    if said is None:
        return None
    try:
        return wait_ms(float(said), now_ms)
    except (TypeError, ValueError, OverflowError):
        pass
    try:
        return wait_ms(parsedate_to_datetime(str(said)), now_ms)
    except (TypeError, ValueError, OverflowError):
        return None


def check_response(response: Any, now_ms: int = 0) -> None:
    """Raises RateLimited for a response with 429 or 503. `now_ms` matters for a date only; 0 means the clock."""
    found = busy(response, now_ms or _clock_ms())
    if found is not None:
        after = None if found.retry_after_ms is None else found.retry_after_ms / 1_000
        raise RateLimited(f"HTTP status {found.status}", retry_after=after)


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _attribute(thing: Any, name: str) -> Any:
    """Libraries make some attributes raise when there is nothing behind them."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - a property of somebody else's
        return None
