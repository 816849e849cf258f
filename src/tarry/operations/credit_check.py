"""The credit check: a service of the operator is asked before every manual retry."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from tarry.core.urls import split_url
from tarry.errors import CheckUnavailableError, InsufficientCreditsError
from tarry.settings import Settings

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True, slots=True)
class CreditCheck:
    """An HTTP endpoint that allows a manual retry (2xx) or refuses it (402)."""

    url: str
    timeout: float
    """Seconds for the whole answer."""

    @classmethod
    def of(cls, settings: Settings) -> CreditCheck | None:
        url = settings.manual_retry_check_url
        return cls(url.get_secret_value(), settings.manual_retry_check_timeout_s) if url else None

    async def ask(self, about: Mapping[str, Any]) -> None:
        """Returns if the retry may go on. Raises InsufficientCreditsError if not, and CheckUnavailableError if there
        is no such answer in time.
        """
        import httpx  # noqa: PLC0415  it takes half a second to import

        try:
            async with asyncio.timeout(self.timeout), httpx.AsyncClient(timeout=None, trust_env=False) as http:  # noqa: S113
                response = await http.post(self.url, json=dict(about))
        except TimeoutError:
            raise self._unavailable(f"gave no answer within {self.timeout:g} seconds") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unavailable(f"cannot be reached ({str(error) or type(error).__name__})") from error
        if response.status_code == HTTPStatus.PAYMENT_REQUIRED:
            raise _refusal(response)
        if not response.is_success:
            raise self._unavailable(f"answered {response.status_code}, which is neither 2xx nor 402")

    def _unavailable(self, what: str) -> CheckUnavailableError:
        return CheckUnavailableError(
            f"The credit check at {split_url(self.url).place} {what}: nothing was done. "
            "Try again when it answers; MANUAL_RETRY_CHECK_URL sets it."
        )


def _refusal(response: httpx.Response) -> InsufficientCreditsError:
    try:
        found = response.json()
    except ValueError:
        found = None
    required, available = (_number(found, name) for name in ("required", "available"))
    numbers = "" if required is None or available is None else f": {required:g} required, {available:g} available"
    return InsufficientCreditsError(
        f"The credit check refused the retry, there are too few credits{numbers}. Nothing was done.",
        required,
        available,
    )


def _number(found: object, name: str) -> int | float | None:
    value = found.get(name) if isinstance(found, dict) else None
    finite = isinstance(value, int | float) and not isinstance(value, bool) and value - value == 0
    return value if finite else None
