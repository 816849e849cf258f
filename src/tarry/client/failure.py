"""Describes one failure: limited in size, and without anything that the redaction hook removes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tarry.client.classify import PLAIN, Verdict
from tarry.client.options import Options
from tarry.contract.header_reader import sane_owner
from tarry.core.fingerprint import fingerprint

log = logging.getLogger("tarry.client")

LONGEST_TYPE = 200


@dataclass(frozen=True, slots=True)
class FailureDescription:
    """An error as it is sent in the headers of a retry request."""

    error_type: str
    error_reason: str
    verdict: Verdict = PLAIN

    @property
    def fingerprint(self) -> str | None:
        """The same fingerprint that the audit computes: errors that differ only in numbers and ids share it."""
        return fingerprint(self.error_type, self.error_reason)


def describe(error: BaseException, options: Options, now_ms: int) -> FailureDescription:
    """Never raises: a redaction hook or a `__str__` that fails must not cost the message its retry."""
    return FailureDescription(type_name(error), _reason(error, options), _verdict(error, options, now_ms))


def owner_of(options: Options, headers: Mapping[str, Any], body: bytes) -> str | None:
    """Whom a message belongs to, by the options. Never raises: a bad owner must not cost the message its retry."""
    try:
        found = options.owner(headers, body) if callable(options.owner) else options.owner
        return sane_owner(None if found is None else str(found))
    except Exception:
        log.exception("the owner of a message could not be found: its retry request names none")
        return None


def type_name(error: BaseException) -> str:
    """`ValueError`, `httpx.ReadTimeout`, `shop.errors.CardDeclined`: the name that a policy matches with a glob."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return name[-LONGEST_TYPE:]


def _reason(error: BaseException, options: Options) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - this may run any code
        text = "(its text could not be produced)"
    try:
        text = options.redact(text) if options.redact else text
    except Exception as failed:  # noqa: BLE001 - the user's code
        text = f"(its text was withheld: the redaction hook failed with {type_name(failed)})"
    printable = text.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()
    return printable if len(printable) <= options.longest_reason else printable[: options.longest_reason - 1] + "…"


def _verdict(error: BaseException, options: Options, now_ms: int) -> Verdict:
    try:
        return options.classes.judge(error, now_ms)
    except Exception:  # noqa: BLE001 - the user's code
        return PLAIN
