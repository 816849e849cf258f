"""Failures that a handler in any language can have, as data, and the errors of Python for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from tarry.client import Final, RateLimited, check_response

Failure = Mapping[str, Any]
"""`kind`, `reason`, and what else the kind needs; `caused_by` is another one."""


class ShopError(Exception):
    """What an application defines."""


class CardDeclined(ShopError):  # noqa: N818 - the names in the table of cases
    pass


class ShopClosed(ShopError):  # noqa: N818
    pass


@dataclass(frozen=True)
class Response:
    """Of an HTTP library."""

    status_code: int
    headers: Mapping[str, str]


def error_of(failure: Failure) -> Exception:
    """The error of Python. It carries the failure, so that a program can be told of it."""
    reason, after = failure.get("reason", ""), failure.get("retry_after")
    match failure["kind"]:
        case "final":
            error: Exception = Final(reason)
        case "rate_limited":
            error = RateLimited(reason, retry_after=after)
        case "http":
            error = busy(Response(failure["status"], {"Retry-After": str(after)}))
        case "card_declined":
            error = CardDeclined(reason)
        case "shop_closed":
            error = ShopClosed(reason)
        case kind:
            error = {"shop_error": ShopError, "error": Exception}[kind](reason)
    error.failure = failure  # type: ignore[attr-defined]
    if cause := failure.get("caused_by"):
        error.__cause__ = error_of(cause)
    return error


def busy(response: Response) -> RateLimited:
    try:
        check_response(response)
    except RateLimited as error:
        return error
    raise AssertionError(f"{response} is no rate limit")


def failure_of(error: Exception) -> Failure:
    """The failure that an error carries, or the nearest one."""
    if (failure := getattr(error, "failure", None)) is not None:
        told: Failure = failure
        return told
    kind = "final" if isinstance(error, Final) else "rate_limited" if isinstance(error, RateLimited) else "error"
    return {"kind": kind, "reason": str(error), "retry_after": getattr(error, "retry_after", None)}


@dataclass(frozen=True)
class FromHeader:
    """An `owner` option that reads a header."""

    name: str

    def __call__(self, headers: Mapping[str, Any], _body: bytes) -> str | None:
        return headers.get(self.name)


@dataclass(frozen=True)
class Masked:
    """A `redact` option that hides what matches."""

    pattern: str

    def __call__(self, text: str) -> str:
        return re.sub(self.pattern, "…", text)


def broken(*_: object) -> NoReturn:
    """An option of the application that has a mistake."""
    raise TypeError("a mistake in the application")
